/* Names, spans and steps: one number a name, an end only once and only in its window. */
#include "logs.h"

int main(void)
{
    char folder[4096];
    uint32_t one, other;
    uint64_t span, inner, stale;
    struct counted counted;
    int fd = new_folder(folder, sizeof folder);

    MUST(penstock_start(folder, 0) == 0);
    one = penstock_name("data wait");
    other = penstock_name("fetch");
    MUST(one && other && one != other);
    for (int i = 0; i < 10000; i++) {
        span = penstock_begin(OP_STEP, one, i);
        inner = penstock_begin(OP_SPAN, other, -1);
        MUST(span && inner && span != inner);
        MUST(penstock_end(inner, 1, 2) == 0);
        MUST(penstock_end(span, (uint64_t)-1, 0) == 0);
    }
    stale = penstock_begin(OP_SPAN, other, 7);
    penstock_note("key", "value");
    MUST(penstock_stop() == 0);
    penstock_end(stale, 0, 0); /* its window is over: whatever this returns, nothing breaks */
    counted = count_folder(folder, OP_STEP);
    MUST(counted.finished == 10000 && counted.in_flight == 0);
    counted = count_folder(folder, OP_SPAN);
    /* 10,000 inner ones, the stale one, and `thread cpu` at the first step's begin. */
    MUST(counted.finished + counted.in_flight == 10002);
    close(fd);
    remove_folder(folder);
    return 0;
}
