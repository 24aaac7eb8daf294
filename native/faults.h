/* The page faults of a program and of all that it starts, as the kernel samples them
 * (perf_event_open), written to a file beside the run's logs.
 *
 * This runs in the launcher, or in a process of its own beside the job, and never in the job:
 * nothing of it is on the path of a call, and the job's threads pay what the kernel takes for two
 * samples a fault.  docs/FORMAT.md describes the file. Not thread-safe: one thread at a time. */
#ifndef PENSTOCK_FAULTS_H
#define PENSTOCK_FAULTS_H

#include <stdint.h>

#include "recorder.h"

struct faults;

/* Page faults of n_pids processes that run, with all their threads, go to a new file `path`; of
 * none: of what the calling process starts by exec from now on.  On the processors that they may
 * use now.  Children inherit, threads too.  is_paused: none are recorded until
 * penstock_faults_pause(faults, 0).
 * -EACCES, -EPERM: the kernel forbids it (perf_event_paranoid, seccomp, locked memory).
 * -ENOSYS, -ENOENT: a kernel without.  -ESRCH: the first process is not there.  -EMFILE: a
 * descriptor for each kind of event, thread and processor is more than the limit.  Others: the file
 * cannot be made. */
PENSTOCK_API int penstock_faults_open(const char *path, int is_paused, const int *pids, int n_pids,
                                      struct faults **opened);

/* Waits at most so long for samples and writes what there is.  -ENOSPC and the like: the file can
 * no longer be written; counting goes on. */
PENSTOCK_API int penstock_faults_drain(struct faults *faults, int timeout_ms);

PENSTOCK_API void penstock_faults_pause(struct faults *faults, int is_paused);

/* Writes what is left and the final counts; frees everything.  -errno: not all was written. */
PENSTOCK_API int penstock_faults_close(struct faults *faults);

#endif
