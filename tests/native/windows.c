/* Windows follow one another; what lies between them is not recorded, and nothing stays patched. */
#include "logs.h"

int main(void)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder);
    struct counted counted;

    MUST(penstock_state() == 0 && penstock_slots() == 0);
    MUST(penstock_stop() == -EINVAL);
    for (int i = 0; i < 100; i++) {
        MUST(penstock_start(folder, 0) == 0);
        MUST(penstock_state() == 1 && penstock_slots() > 0);
        MUST(!strcmp(penstock_folder(), folder));
        MUST(penstock_start(folder, 0) == -EALREADY);
        do_preads(fd, 10);
        MUST(!penstock_in_call());
        MUST(penstock_stop() == 0);
        MUST(penstock_state() == 0 && penstock_slots() == 0);
        MUST(penstock_stop() == -EINVAL);
        do_preads(fd, 5);
    }
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.finished == 1000 && counted.in_flight == 0 && counted.folded == 0);
    remove_folder(folder);
    return 0;
}
