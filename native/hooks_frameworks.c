/* Calls inside a framework, unseen from Python.  Knows the framework's symbols; knows no ELF. */
#include "account.h"
#include "hook.h"
#include "recorder.h"

/* tensorflow::metrics::RecordTFDataGetNextDuration(uint64_t us): libtensorflow_cc calls the
 * function, in libtensorflow_framework, after each element taken by a consumer from a tf.data
 * iterator on the host, in Python or inside a graph, on the consumer's thread.  The span is an
 * instant after the wait: a is the length of the wait in us, b the CPU time of the whole process so
 * far in ns.  If the run-queue delay of all threads was read when the graph was called, a second
 * span reports the delay. */
#define GET_NEXT_DURATION _ZN10tensorflow7metrics27RecordTFDataGetNextDurationEm

static void told(uint64_t us)
{
    static uint32_t name, delay_name; /* two threads that ask at once receive equal ids */
    uint64_t handle;
    int64_t delays_ns;

    if (!name)
        name = penstock_name("get next");
    handle = penstock_begin(OP_SPAN, name, -1);
    penstock_end(handle, us, clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    delays_ns = account_is_awaited() ? penstock_run_delays(PENSTOCK_AFTER) : -1;
    if (delays_ns < 0)
        return;
    if (!delay_name)
        delay_name = penstock_name("get next delay");
    handle = penstock_begin(OP_SPAN, delay_name, -1);
    penstock_end(handle, 0, (uint64_t)delays_ns + 1);
}

#define HOOK_EXPANDED(provider, type, function, parameters)                                        \
    HOOK_OF(provider, type, function, parameters)
#define REAL_EXPANDED(function) real_##function
#define REAL(function) REAL_EXPANDED(function)

HOOK_EXPANDED("libtensorflow_framework", void, GET_NEXT_DURATION, (uint64_t us))
{
    if (recorder_on)
        told(us);
    REAL(GET_NEXT_DURATION)(us);
}
