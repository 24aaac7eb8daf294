/* Room for the log runs out (here: the process's limit on the size of a file): the recording
 * ends with a reason, the program goes on, what was recorded until then can be read, and each call
 * after it is counted, a child's with its parent's. */
#include "logs.h"

#include <sys/resource.h>

static void in_a_child(int fd, rlim_t room, int preads)
{
    struct rlimit small = {room, RLIM_INFINITY};
    pid_t child = fork();
    int status;

    MUST(child >= 0);
    if (!child) {
        MUST(setrlimit(RLIMIT_FSIZE, &small) == 0);
        do_preads(fd, preads);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

/* Its parent records on. */
static void test_a_child_without_room_for_a_log_is_counted_with_its_parent(void)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder);
    struct counted counted;

    MUST(penstock_start(folder, 0) == 0);
    in_a_child(fd, 0, 700);
    do_preads(fd, 300);
    MUST(penstock_stop() == 0);
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.logs == 1 && counted.finished == 300 && counted.lost == 700);
    remove_folder(folder);
}

/* A job's standard error is often a file, and the limit holds for it too: what cannot be said ends
 * nobody.  In an image of its own, as the recorder says nothing on a descriptor put there later. */
static void test_standard_error_is_a_file_without_room(const char *folder, int fd)
{
    struct counted counted;

    MUST(penstock_start(folder, 0) == 0);
    in_a_child(fd, 0, 7);
    MUST(penstock_stop() == 0);
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.lost == 7);
}

static void in_an_image_with_standard_error_in_a_file(void)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder), status;
    int said = open(path_in(folder, "said"), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    pid_t child = fork();

    MUST(fd >= 0 && said >= 0 && child >= 0);
    if (!child) {
        dup2(said, 2);
        execl("/proc/self/exe", "full_disk", "said", NULL);
        _exit(127);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    remove_folder(folder);
}

int main(int n_arguments, char **arguments)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder);
    struct rlimit small = {1 << 20, RLIM_INFINITY};
    struct counted counted;

    if (n_arguments > 1 && !strcmp(arguments[1], "said")) {
        test_standard_error_is_a_file_without_room(folder, fd);
        remove_folder(folder);
        return 0;
    }
    test_a_child_without_room_for_a_log_is_counted_with_its_parent();
    in_an_image_with_standard_error_in_a_file();
    MUST(setrlimit(RLIMIT_FSIZE, &small) == 0);
    MUST(penstock_start(folder, 0) == 0);
    do_preads(fd, 100000);
    MUST(penstock_state() == 2 && *penstock_reason());
    do_preads(fd, 100000);
    in_a_child(fd, 1 << 20, 5000);
    penstock_stop();
    MUST(penstock_slots() == 0);
    do_preads(fd, 10);
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.logs == 1 && counted.finished > 1000 && counted.folded == 0);
    MUST(counted.lost == 205000 - counted.finished + 1); /* the fork */
    remove_folder(folder);
    return 0;
}
