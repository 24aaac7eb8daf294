/* The recorder's interface for the recorded process: a few calls, by ctypes or from C.  All are
 * safe from any thread.  Results are 0 or -errno where nothing else is said. */
#ifndef PENSTOCK_RECORDER_H
#define PENSTOCK_RECORDER_H

#include <stddef.h>
#include <stdint.h>

#define PENSTOCK_API __attribute__((visibility("default")))

/* Begin a window: events go to a log of the process in `folder` (an existing, writable folder).
 * budget_bytes bounds the single events kept on disk, 0: the default of 1 GiB.
 * -EALREADY: a window is open.  -ENOTSUP: this libc or kernel. */
PENSTOCK_API int penstock_start(const char *folder, uint64_t budget_bytes);

/* Begin a window in a running process, called from another process (native/attach): the log notes
 * the late start, and loaded Python frameworks are followed too. */
PENSTOCK_API int penstock_attach(const char *folder, uint64_t budget_bytes);

/* Redirect opens for reading to the copies of a tier's map (docs/FORMAT-stage.md) while windows are
 * open, from the next window on.  -EALREADY: a window is open.  -EINVAL: an unknown map.  -EPERM:
 * another user's. */
PENSTOCK_API int penstock_staged(const char *map);

/* Files that fit `patterns` (native/burst.h) and are made by the program while windows are open,
 * from the next window on, go to `folder` first; `run` in the files' names there shows the owner.
 * -EALREADY: a window is open.  -ENOENT: no such folder. */
PENSTOCK_API int penstock_burst(const char *folder, const char *patterns, uint32_t run);

/* From now on this process sees links to the burst tier, and its new files go to their own paths:
 * for Penstock's own processes, started by a recorded program. */
PENSTOCK_API void penstock_unburst(void);

/* End the window; every import slot and page protection is restored.  -EINVAL: no window is
 * open. */
PENSTOCK_API int penstock_stop(void);

/* 0 off, 1 recording, 2 a failure of the recorder ended the recording (see penstock_reason), 3
 * paused. */
PENSTOCK_API int penstock_state(void);
PENSTOCK_API const char *penstock_reason(void); /* "" when there is none */
PENSTOCK_API const char *penstock_folder(void); /* of the open or latest window, "" when none */

/* Pause the open window, and continue: nothing is recorded in between, and the log has the begin
 * and the end, with `index`.  Slots stay, and new programs and libraries are followed.  -EINVAL: no
 * window is open, or the window is not paused.  -EAGAIN: only the pausing thread can continue. */
PENSTOCK_API int penstock_pause(int64_t index);
PENSTOCK_API int penstock_resume(void);

/* The command for all processes of the run: 8 bytes, written by another process, the generation
 * above 32 bits of PENSTOCK_RECORD or PENSTOCK_PAUSE.  The file `control` of the window's folder,
 * mapped here once; NULL: no file. */
enum { PENSTOCK_RECORD = 1, PENSTOCK_PAUSE = 2 };
PENSTOCK_API const uint64_t *penstock_control(void);

/* Return a number for the name of a span or a step, valid in every window and forked child of the
 * process; 0 past 65,535 names: the log has no name for a span with 0. */
PENSTOCK_API uint32_t penstock_name(const char *name);

/* op is OP_STEP or OP_SPAN.  Returns a handle for the end, 0 when not recording.  Begin and end
 * belong to a single thread.  a and b keep their low 48 bits. */
PENSTOCK_API uint64_t penstock_begin(uint32_t op, uint32_t name, int64_t index);
PENSTOCK_API int penstock_end(uint64_t handle, uint64_t a, uint64_t b);

/* Add a fact about the process to the log. */
PENSTOCK_API void penstock_note(const char *key, const char *value);

/* An ended request over HTTP: struct request_record of native/events.h, with `told` filled in here.
 * name and path as in a log. */
PENSTOCK_API void penstock_request(const char *name, const char *path, const void *record);

/* Return the number of a descriptor's connection, 0: not a known connection. */
PENSTOCK_API uint64_t penstock_connection(int fd);

/* Return the ns in which the calling thread was runnable and not running, since the thread's begin;
 * -1: not measured. */
PENSTOCK_API int64_t penstock_run_delay(void);

/* End the span `handle` (0: there is none) of the step `index` with the CPU ns of the calling
 * thread (a) and its ns ready to run without a CPU (b) since the span began, 2^63-1: not measured,
 * and begin the next span.  Return the next span's handle; 0: not recording. */
PENSTOCK_API uint64_t penstock_balance(uint64_t handle, uint32_t name, int64_t index);
/* Return the run-queue delay of all threads of the process together, since the first call: call
 * before and after a wait.  A call takes 2 us a thread; before a wait the answer is -1 if less than
 * a hundred times the duration has passed since.  Delay of ended threads is missing.  Before a
 * graph: the recorder itself asks after each wait in the graph. */
enum { PENSTOCK_AFTER = 0, PENSTOCK_BEFORE = 1, PENSTOCK_BEFORE_GRAPH = 2 };
PENSTOCK_API int64_t penstock_run_delays(int when);

/* Copy the words of a command line, each ended by NUL, as a log keeps the words: without secrets.
 * PENSTOCK_SECRETS in the environment adds names.  Returns the used bytes of `out`. */
PENSTOCK_API size_t penstock_hide_secrets(const char *words, size_t bytes, char *out, size_t room);

/* Return the CRC-32C of bytes after other bytes with the given sum (0: none). */
PENSTOCK_API uint32_t penstock_crc32c(uint32_t sum, const void *data, size_t bytes);

/* For tests: slots patched now; whether the calling thread is inside a recorded call; the hooked
 * names, by number until NULL. */
PENSTOCK_API int penstock_slots(void);
PENSTOCK_API int penstock_in_call(void);
PENSTOCK_API const char *penstock_hook(int number);

#endif
