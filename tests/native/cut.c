/* Files of the recording are cut while a program runs: the program goes on, also where it blocks
 * every signal; a SIGBUS of its own is handled as if nothing were recorded. */
#include "logs.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static void cut_logs(const char *folder, off_t size)
{
    struct dirent *entry;
    DIR *listing = opendir(folder);

    MUST(listing);
    while ((entry = readdir(listing)))
        if (strstr(entry->d_name, ".events"))
            MUST(truncate(path_in(folder, entry->d_name), size) == 0);
    closedir(listing);
}

static void test_a_log_is_cut(off_t size)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder), child, status;
    sigset_t all, before;

    MUST(penstock_start(folder, 0) == 0);
    do_preads(fd, 100);
    cut_logs(folder, size);
    sigfillset(&all);
    pthread_sigmask(SIG_UNBLOCK, &all, &before); /* it was begun with all of them blocked */
    do_preads(fd, 5000);
    MUST(penstock_state() != 0); /* the window stays open, and records nothing */
    child = fork();
    if (!child) {
        do_preads(fd, 10);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(penstock_stop() == 0);
    if (size > LOG_HEADER_BYTES)
        MUST(count_folder(folder, OP_PREAD).logs == 1);
    remove_folder(folder);
}

static void *in_a_thread_without_signals(void *argument)
{
    const char *folder = argument;
    int fd = open(path_in(folder, "data"), O_RDWR);
    sigset_t all;

    MUST(fd >= 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    do_preads(fd, 100);
    cut_logs(folder, 0);
    do_preads(fd, 5000);
    close(fd);
    return NULL;
}

static void test_a_thread_that_blocks_all_signals(void)
{
    char folder[4096];
    pthread_t thread;

    new_folder(folder, sizeof folder);
    MUST(penstock_start(folder, 0) == 0);
    MUST(pthread_create(&thread, NULL, in_a_thread_without_signals, folder) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(penstock_stop() == 0);
    remove_folder(folder);
}

/* --- the program's own ----------------------------------------------------------------------- */

static sigjmp_buf back;
static void *volatile touched;
static volatile int sent;

static void on_own(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    touched = info->si_addr;
    sent = info->si_code;
    siglongjmp(back, 1);
}

static char *page_that_is_gone(const char *folder)
{
    int fd = open(path_in(folder, "own"), O_RDWR | O_CREAT, 0600);
    char *page;

    MUST(fd >= 0 && ftruncate(fd, 4096) == 0);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(page != MAP_FAILED && ftruncate(fd, 0) == 0);
    close(fd);
    return page;
}

static void test_the_programs_own_handler(void)
{
    struct sigaction own = {.sa_sigaction = on_own, .sa_flags = SA_SIGINFO};
    struct sigaction first, before;
    char folder[4096];
    int fd = new_folder(folder, sizeof folder);
    char *page = page_that_is_gone(folder);

    sigaction(SIGBUS, NULL, &first); /* the default, or a sanitizer's */
    MUST(penstock_start(folder, 0) == 0);
    do_preads(fd, 10);
    MUST(sigaction(SIGBUS, &own, &before) == 0 && before.sa_handler == first.sa_handler);
    MUST(sigaction(SIGBUS, NULL, &before) == 0 && before.sa_sigaction == on_own);
    if (!sigsetjmp(back, 1))
        *(volatile char *)page = 1;
    MUST(touched == page && sent == BUS_ADRERR);
    if (!sigsetjmp(back, 1))
        kill(getpid(), SIGBUS);
    MUST(sent == SI_USER);
    do_preads(fd, 10);
    MUST(penstock_stop() == 0);
    MUST(count_folder(folder, OP_PREAD).finished == 20);
    MUST(signal(SIGBUS, SIG_DFL) != SIG_ERR);
    remove_folder(folder);
}

static void test_the_programs_own_death(bool by_kill)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder), status;
    pid_t child;

    MUST(penstock_start(folder, 0) == 0);
    child = fork();
    if (!child) {
        signal(SIGBUS, SIG_DFL);
        do_preads(fd, 10);
        if (by_kill)
            kill(getpid(), SIGBUS);
        else
            *(volatile char *)page_that_is_gone(folder) = 1;
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    MUST(penstock_stop() == 0);
    remove_folder(folder);
}

int main(void)
{
    test_the_programs_own_handler();
    test_a_log_is_cut(0);
    test_a_log_is_cut(4096);
    test_a_log_is_cut(65536 + 100);
    test_a_thread_that_blocks_all_signals();
    test_the_programs_own_death(false);
    test_the_programs_own_death(true);
    return 0;
}
