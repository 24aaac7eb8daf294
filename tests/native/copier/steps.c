/* The copier's steps, where a program changes its path in the middle of one of them.  The file
 * includes the source, so that the test acts just before any system call of the copier. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static long (*before_exchange)(int turn); /* not 0: the call fails with this error */
static int turns;

static long kernel(long number, ...)
{
    long words[5], error = 0;
    va_list list;
    int i;

    va_start(list, number);
    for (i = 0; i < 5; i++)
        words[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_renameat2 && before_exchange)
        error = before_exchange(++turns);
    if (error) {
        errno = (int)error;
        return -1;
    }
    return syscall(number, words[0], words[1], words[2], words[3], words[4]);
}

#define syscall kernel
#include "copier.c"
#undef syscall

static char root[] = "/tmp/penstock-copier-XXXXXX";
static char data_path[64];
static struct copier_file file;
static struct copier *copier;
static int32_t data, home, work;

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0640);

    MUST(fd >= 0 && write(fd, text, strlen(text)) == (long)strlen(text) && !close(fd));
}

static void must_be(const char *path, const char *text)
{
    char found[64] = "";
    int fd = open(path, O_RDONLY | O_NOFOLLOW);

    MUST(fd >= 0 && read(fd, found, sizeof found - 1) >= 0 && !close(fd));
    MUST(!strcmp(found, text));
}

static bool is_there(const char *path)
{
    struct stat found;

    return !lstat(path, &found);
}

/* A file on the tier, its links, and a copier for it. */
static void begin(void)
{
    char target[96];

    put("data/id-a", "bytes");
    snprintf(target, sizeof target, "%s/id-a", data_path);
    unlink("work/a");
    MUST(!symlink(target, "work/a"));
    unlink("home/id-a");
    MUST(!symlink("elsewhere", "home/id-a"));
    file = (struct copier_file){.descriptor = -1};
    turns = 0;
    copier = penstock_copier_open("id-a\0a", 1, &file, &work, data_path, data, home, 0.0);
    MUST(copier);
    penstock_copier_copy(copier, 0, 1);
}

static void end(void)
{
    penstock_copier_close(copier);
    if (file.descriptor >= 0)
        close(file.descriptor);
    before_exchange = NULL;
    unlink("work/.id-a.penstock-new");
}

static void test_a_file_arrives_and_leaves_the_tier(void)
{
    struct stat found;

    MUST(!symlink("../secret", "work/.id-a.penstock-new")); /* a stranger's */
    begin();
    MUST(file.state == COPIER_WRITTEN && !is_there("secret"));
    MUST(penstock_copier_place(copier, 0, 1) == 1 && file.state == COPIER_PLACED);
    must_be("work/a", "bytes");
    MUST(!stat("work/a", &found) && (found.st_mode & 0777) == 0640);
    MUST(is_there("work/.id-a.penstock-new") && is_there("home/id-a"));
    penstock_copier_clear(copier, 0, 1);
    MUST(!is_there("work/.id-a.penstock-new") && is_there("data/id-a"));
    penstock_copier_drop(copier, 0, 1);
    MUST(file.state == COPIER_DROPPED && !is_there("data/id-a") && !is_there("home/id-a"));
    end();
}

static long replaces_once(int turn)
{
    if (turn == 1) {
        put("other", "newer");
        MUST(!rename("other", "work/a"));
    }
    return 0;
}

static void test_a_program_that_is_quicker_keeps_its_file(void)
{
    begin();
    before_exchange = replaces_once;
    MUST(penstock_copier_place(copier, 0, 1) == 1 && file.state == COPIER_LATE && turns == 2);
    must_be("work/a", "newer");
    must_be("work/.id-a.penstock-new", "bytes");
    MUST(is_there("data/id-a"));
    end();
}

static long replaces_twice(int turn)
{
    if (turn < 3) {
        put("other", turn == 1 ? "newer" : "newest");
        MUST(!rename("other", "work/a"));
    }
    return 0;
}

static void test_a_program_that_is_quicker_again_is_the_callers_matter(void)
{
    begin();
    before_exchange = replaces_twice;
    MUST(penstock_copier_place(copier, 0, 1) == 1 && file.state == COPIER_TAKEN);
    MUST(file.descriptor >= 0 && turns == 3);
    must_be("work/a", "newest");
    must_be("work/.id-a.penstock-new", "newer");
    end();
}

static long wants_to_write(int turn)
{
    (void)turn;
    MUST(open("data/id-a", O_WRONLY | O_NONBLOCK) < 0 && errno == EWOULDBLOCK);
    return 0;
}

static void test_a_writer_that_waits_is_the_callers_matter(void)
{
    begin();
    before_exchange = wants_to_write;
    MUST(penstock_copier_place(copier, 0, 1) == 1);
    if (file.state != COPIER_PLACED) { /* else a file system without leases */
        MUST(file.state == COPIER_WANTED && file.descriptor >= 0);
        MUST(is_there("work/.id-a.penstock-new"));
    }
    end();
}

static void test_a_file_that_changes_is_not_placed_and_not_dropped(void)
{
    begin();
    put("data/id-a", "other");
    penstock_copier_place(copier, 0, 1);
    MUST(file.state == COPIER_CHANGED);
    end();
    begin();
    penstock_copier_place(copier, 0, 1);
    put("data/id-a", "other");
    penstock_copier_drop(copier, 0, 1);
    MUST(file.state == COPIER_KEPT && is_there("data/id-a") && is_there("home/id-a"));
    end();
    begin();
    penstock_copier_place(copier, 0, 1);
    MUST(!unlink("work/a") && !symlink("newer", "work/a"));
    penstock_copier_drop(copier, 0, 1);
    MUST(file.state == COPIER_KEPT && is_there("data/id-a"));
    end();
}

static void test_a_damaged_copy_is_not_placed(void)
{
    begin();
    put("work/.id-a.penstock-new", "flips");
    penstock_copier_place(copier, 0, 1);
    MUST(file.state == COPIER_DIFFERS);
    end();
}

static long cannot(int turn)
{
    (void)turn;
    return EINVAL;
}

static void test_a_file_system_without_exchange(void)
{
    begin();
    before_exchange = cannot;
    penstock_copier_place(copier, 0, 1);
    MUST(file.state == COPIER_NO_EXCHANGE);
    end();
}

static void test_files_that_are_not_copied(void)
{
    int writer;

    begin();
    end();
    put("data/id-a", "");
    file.state = COPIER_NEW;
    copier = penstock_copier_open("id-a\0a", 1, &file, &work, data_path, data, home, 0.0);
    penstock_copier_copy(copier, 0, 1);
    MUST(file.state == COPIER_OPEN && !is_there("work/.id-a.penstock-new"));
    file.flags |= COPIER_IS_CLEARED;
    file.state = COPIER_READ;
    penstock_copier_copy(copier, 0, 1);
    MUST(file.state == COPIER_WRITTEN);
    writer = open("data/id-a", O_WRONLY);
    file.state = COPIER_NEW;
    penstock_copier_copy(copier, 0, 1);
    MUST(file.state == COPIER_BUSY);
    close(writer);
    MUST(!truncate("data/id-a", COPIER_LARGEST + 1));
    file.state = COPIER_NEW;
    penstock_copier_copy(copier, 0, 1);
    MUST(file.state == COPIER_LARGE);
    end();
}

int main(void)
{
    MUST(mkdtemp(root) && !chdir(root));
    MUST(!mkdir("data", 0700) && !mkdir("home", 0700) && !mkdir("work", 0700));
    snprintf(data_path, sizeof data_path, "%s/data", root);
    data = open("data", O_RDONLY | O_DIRECTORY);
    home = open("home", O_RDONLY | O_DIRECTORY);
    work = open("work", O_RDONLY | O_DIRECTORY);
    MUST(data >= 0 && home >= 0 && work >= 0);
    test_a_file_arrives_and_leaves_the_tier();
    test_a_program_that_is_quicker_keeps_its_file();
    test_a_program_that_is_quicker_again_is_the_callers_matter();
    test_a_writer_that_waits_is_the_callers_matter();
    test_a_file_that_changes_is_not_placed_and_not_dropped();
    test_a_damaged_copy_is_not_placed();
    test_a_file_system_without_exchange();
    test_files_that_are_not_copied();
    MUST(!chdir("/"));
    execlp("rm", "rm", "-rf", root, NULL);
    return 1;
}
