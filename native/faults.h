/* The page faults of a program and of all its descendants, as the kernel samples the faults
 * (perf_event_open), written to a file beside the run's logs.
 *
 * The code runs in the launcher, or in a separate process beside the job, and never in the job: no
 * part is on the path of a call, and the job's threads pay only the kernel's time for two samples a
 * fault.  docs/FORMAT.md describes the file.  Not thread-safe: a single thread at a time. */
#ifndef PENSTOCK_FAULTS_H
#define PENSTOCK_FAULTS_H

#include <stdint.h>

#include "recorder.h"

struct faults;

/* Write the page faults of n_pids running processes, with all their threads, to a new file `path`;
 * with n_pids 0, of the programs started by exec from now on by the calling process.  On the CPUs
 * allowed now.  Children and threads inherit.  is_paused: nothing is recorded until
 * penstock_faults_pause(faults, 0).
 * -EACCES, -EPERM: the kernel forbids sampling (perf_event_paranoid, seccomp, locked memory).
 * -ENOSYS, -ENOENT: the kernel cannot sample.  -ESRCH: the first process is not there.  -EMFILE: a
 * descriptor for each kind of event, thread and CPU is more than the limit.  Others: the file
 * cannot be made. */
PENSTOCK_API int penstock_faults_open(const char *path, int is_paused, const int *pids, int n_pids,
                                      struct faults **opened);

/* Wait at most so long for samples and write the samples.  -ENOSPC and the like: the file can no
 * longer be written; counting goes on. */
PENSTOCK_API int penstock_faults_drain(struct faults *faults, int timeout_ms);

PENSTOCK_API void penstock_faults_pause(struct faults *faults, int is_paused);

/* Write the remaining samples and the final counts; free everything.  -errno: not all was
 * written. */
PENSTOCK_API int penstock_faults_close(struct faults *faults);

#endif
