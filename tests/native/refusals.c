/* A window that cannot begin says why, and leaves nothing behind. */
#include "logs.h"

int main(void)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder);
    struct counted counted;

    MUST(penstock_start("/missing/folder", 0) == -ENOENT);
    MUST(penstock_start(path_in(folder, "data"), 0) == -ENOTDIR);
    MUST(penstock_state() == 0 && penstock_slots() == 0);
    if (geteuid() != 0) {
        MUST(chmod(folder, 0500) == 0);
        MUST(penstock_start(folder, 0) == -EACCES);
        MUST(chmod(folder, 0700) == 0);
    }
    MUST(penstock_begin(OP_SPAN, 0, 0) == 0);
    penstock_note("nobody", "records");

    MUST(penstock_start(folder, 0) == 0);
    do_preads(fd, 3);
    MUST(penstock_stop() == 0);
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.finished == 3 && counted.logs == 1);
    remove_folder(folder);
    return 0;
}
