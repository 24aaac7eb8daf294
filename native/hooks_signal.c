/* The program's own action for SIGBUS, replaced in the kernel by the recorder's: see guard.h.
 * Records nothing. */
#include <signal.h>

#include "guard.h"
#include "hook.h"

/* A vfork child has its own signals on its parent's memory. */
static bool is_guarded(int number)
{
    return number == SIGBUS && !(log_self && log_self->is_borrowed);
}

HOOK(int, sigaction, (int number, const struct sigaction *action, struct sigaction *before))
{
    if (is_guarded(number) && guard_action(action, before))
        return 0;
    return real_sigaction(number, action, before);
}

HOOK(sighandler_t, signal, (int number, sighandler_t handler))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;

    if (is_guarded(number) && handler != SIG_ERR && guard_action(&action, &before))
        return before.sa_handler;
    return real_signal(number, handler);
}
