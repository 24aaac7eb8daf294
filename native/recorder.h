/* What the recorder offers to the process it lives in: a few calls, by ctypes or from C.
 * All are safe from any thread.  Results are 0 or -errno where nothing else is said. */
#ifndef PENSTOCK_RECORDER_H
#define PENSTOCK_RECORDER_H

#include <stddef.h>
#include <stdint.h>

#define PENSTOCK_API __attribute__((visibility("default")))

/* Begins a window: events go to a log of this process in `folder` (an existing, writable folder).
 * budget_bytes bounds the single events kept on disk, 0: the default of 1 GiB.
 * -EALREADY: a window is open.  -ENOTSUP: this libc or kernel. */
PENSTOCK_API int penstock_start(const char *folder, uint64_t budget_bytes);

/* The same in a process that ran already, called by another one (native/attach): the log says how
 * late it came, and Python's frameworks that are there are told of too. */
PENSTOCK_API int penstock_attach(const char *folder, uint64_t budget_bytes);

/* Opens that only read are redirected to the copies of a tier's map (docs/FORMAT-stage.md) while
 * windows are open, from the next one on.  -EALREADY: a window is open.  -EINVAL: no map that is
 * known here.  -EPERM: another user's. */
PENSTOCK_API int penstock_staged(const char *map);

/* Files that fit `patterns` (native/burst.h) and that the program makes while windows are open,
 * from the next one on, go to `folder` first; `run` says in their names there whose they are.
 * -EALREADY: a window is open.  -ENOENT: no such folder. */
PENSTOCK_API int penstock_burst(const char *folder, const char *patterns, uint32_t run);

/* This process from now on sees what lies there, and its files go where it says: for our own, which
 * a recorded program has started. */
PENSTOCK_API void penstock_unburst(void);

/* Ends the window; every import slot and page protection is as it was.  -EINVAL: none is open. */
PENSTOCK_API int penstock_stop(void);

/* 0 off, 1 recording, 2 the recording ended by its own trouble (penstock_reason says which),
 * 3 paused. */
PENSTOCK_API int penstock_state(void);
PENSTOCK_API const char *penstock_reason(void); /* "" when there is none */
PENSTOCK_API const char *penstock_folder(void); /* of the open or latest window, "" when none */

/* Pauses the open window and goes on with it: nothing is recorded between, and the log says from
 * when to when.  index is kept with that.  Slots stay as they are, and programs and libraries that
 * come meanwhile are followed.  -EINVAL: no window is open, or it is not paused.  -EAGAIN: only the
 * thread that paused can go on. */
PENSTOCK_API int penstock_pause(int64_t index);
PENSTOCK_API int penstock_resume(void);

/* What is asked of all processes of the run: 8 bytes that another process writes, the generation
 * above 32 bits of PENSTOCK_RECORD or PENSTOCK_PAUSE.  The file `control` of the window's folder,
 * mapped here once; NULL: there is none. */
enum { PENSTOCK_RECORD = 1, PENSTOCK_PAUSE = 2 };
PENSTOCK_API const uint64_t *penstock_control(void);

/* A number for a name of a span or a step, good in every window and forked child of this process;
 * 0 past 65,535 names, and for a span with 0 the log has no name. */
PENSTOCK_API uint32_t penstock_name(const char *name);

/* op is OP_STEP or OP_SPAN.  Returns a handle for the end, 0 when not recording.
 * Begin and end belong to one thread.  a and b keep their low 48 bits. */
PENSTOCK_API uint64_t penstock_begin(uint32_t op, uint32_t name, int64_t index);
PENSTOCK_API int penstock_end(uint64_t handle, uint64_t a, uint64_t b);

/* A fact about this process for its log. */
PENSTOCK_API void penstock_note(const char *key, const char *value);

/* A request over HTTP that ended: struct request_record of native/events.h, of which `told` is
 * filled in here.  name and path as a log has them. */
PENSTOCK_API void penstock_request(const char *name, const char *path, const void *record);

/* The number of the connection that a descriptor is, 0: of none that is known. */
PENSTOCK_API uint64_t penstock_connection(int fd);

/* How long the calling thread was runnable and not running, in ns since it began; -1: not measured.
 */
PENSTOCK_API int64_t penstock_run_delay(void);

/* Ends the span `handle` (0: there is none) of the step `index` with the CPU ns of the calling
 * thread (a) and its ns ready to run without a CPU (b) since the span began, 2^63-1: not measured,
 * and begins the next one.  Returns the handle of that; 0: not recording. */
PENSTOCK_API uint64_t penstock_balance(uint64_t handle, uint32_t name, int64_t index);
/* The same of all threads of this process together, since the first time: to be asked before and
 * after a wait.  Asking takes 2 us a thread; before a wait the answer is -1 where a hundred times
 * as long has not passed since.  What a thread had that has ended is left out.  Before a graph: the
 * recorder itself asks after each wait in it. */
enum { PENSTOCK_AFTER = 0, PENSTOCK_BEFORE = 1, PENSTOCK_BEFORE_GRAPH = 2 };
PENSTOCK_API int64_t penstock_run_delays(int when);

/* The words of a command line, each ended by NUL, as a log keeps them: without secrets.
 * PENSTOCK_SECRETS in the environment adds names.  Returns the bytes of `out` that are used. */
PENSTOCK_API size_t penstock_hide_secrets(const char *words, size_t bytes, char *out, size_t room);

/* The CRC-32C of bytes that follow others with the given sum (0: none). */
PENSTOCK_API uint32_t penstock_crc32c(uint32_t sum, const void *data, size_t bytes);

/* For tests: slots patched now; whether the calling thread is inside a recorded call;
 * the names that are hooked, one by one until NULL. */
PENSTOCK_API int penstock_slots(void);
PENSTOCK_API int penstock_in_call(void);
PENSTOCK_API const char *penstock_hook(int number);

#endif
