/* Past the budget single events thin out and the counters go on: together they are every call. 
 * Spans stay single. */
#include "logs.h"

#define CALLS 200000

int main(void)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder);
    struct counted calls, spans;
    uint64_t step;
    uint32_t name;

    MUST(penstock_start(folder, 1 << 20) == 0);
    name = penstock_name("batch");
    MUST(name != 0);
    step = penstock_begin(OP_STEP, name, 0); /* in flight through every fold */
    for (int i = 0; i < CALLS / 100; i++) {
        uint64_t span = penstock_begin(OP_SPAN, name, i);

        do_preads(fd, 100);
        MUST(penstock_end(span, 1, 2) == 0);
    }
    MUST(penstock_end(step, 3, 4) == 0);
    MUST(penstock_stop() == 0);
    calls = count_folder(folder, OP_PREAD);
    MUST(calls.finished + calls.folded == CALLS);
    MUST(calls.finished > 0 && calls.folded > 0);
    spans = count_folder(folder, OP_SPAN);
    /* One more is `thread cpu`, at the first step's begin. */
    MUST(spans.finished == CALLS / 100 + 1 && spans.folded == 0);
    spans = count_folder(folder, OP_STEP);
    MUST(spans.finished == 1 && spans.in_flight == 0 && spans.moved == 4);
    remove_folder(folder);
    return 0;
}
