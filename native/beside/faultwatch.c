/* Samples the page faults of a self-recording process, from beside the process: the recorder starts
 * no thread in the job, and the job has no launcher.
 *
 *     faultwatch LIBRARY FILE PID
 *
 * Detaches at once from the parent.  Writes a line to standard output when sampling starts: 0, or
 * the errno of the failure.  Ends with PID, or with a byte or the end of standard input, and closes
 * standard output when the file is complete. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../faults.h"

#define DRAIN_MS 20 /* longest delay of a window's end; a full ring is drained at once */

static int (*open_faults)(const char *, int, const int *, int, struct faults **);
static int (*drain)(struct faults *, int);
static int (*close_faults)(struct faults *);

static int load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);

    if (!library)
        return -ELIBACC;
    *(void **)&open_faults = dlsym(library, "penstock_faults_open");
    *(void **)&drain = dlsym(library, "penstock_faults_drain");
    *(void **)&close_faults = dlsym(library, "penstock_faults_close");
    return open_faults && drain && close_faults ? 0 : -ELIBACC;
}

/* Ignore signals for the job's process group and for the end of the terminal: the job may live
 * on. */
static void leave_job(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};
    size_t i;

    if (fork() != 0)
        _exit(0);
    setsid();
    for (i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
}

int main(int argc, char **argv)
{
    struct faults *faults = NULL;
    struct pollfd ends[2] = {{.events = POLLIN}, {.events = POLLIN}};
    int error, pid;

    if (argc != 4)
        return 2;
    leave_job();
    pid = atoi(argv[3]);
    ends[0].fd = STDIN_FILENO;
    ends[1].fd = (int)syscall(SYS_pidfd_open, pid, 0);
    error = load(argv[1]);
    if (!error && ends[1].fd < 0)
        error = -errno;
    if (!error)
        error = open_faults(argv[2], 0, &pid, 1, &faults);
    dprintf(STDOUT_FILENO, "%d\n", -error);
    if (error)
        return 1;
    while (poll(ends, 2, 0) == 0)
        drain(faults, DRAIN_MS);
    error = close_faults(faults);
    dprintf(STDOUT_FILENO, "%d\n", -error);
    return error != 0;
}
