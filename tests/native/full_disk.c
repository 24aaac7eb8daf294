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

int main(void)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder);
    struct rlimit small = {1 << 20, RLIM_INFINITY};
    struct counted counted;

    test_a_child_without_room_for_a_log_is_counted_with_its_parent();
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
