/* Room for the log runs out (here: the process's limit on the size of a file): the recording
 * ends with a reason, the program goes on, and what was recorded until then can be read. */
#include "logs.h"

#include <sys/resource.h>

int main(void)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder);
    struct rlimit small = {1 << 20, RLIM_INFINITY};
    struct counted counted;

    MUST(setrlimit(RLIMIT_FSIZE, &small) == 0);
    MUST(penstock_start(folder, 0) == 0);
    do_preads(fd, 100000);
    MUST(penstock_state() == 2 && *penstock_reason());
    do_preads(fd, 100000);
    penstock_stop();
    MUST(penstock_slots() == 0);
    do_preads(fd, 10);
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.finished + counted.folded > 1000);
    remove_folder(folder);
    return 0;
}
