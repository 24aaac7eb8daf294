/* A program linked against the condition variables of glibc before 2.3.2, which have another
 * layout. By hand: one pthread_cond_wait that another thread signals, all three of the old version.
 * */
#include "blocked.h"

#include <semaphore.h>

__asm__(".symver old_init,pthread_cond_init@GLIBC_2.2.5");
__asm__(".symver old_wait,pthread_cond_wait@GLIBC_2.2.5");
__asm__(".symver old_signal,pthread_cond_signal@GLIBC_2.2.5");
int old_init(pthread_cond_t *condition, const pthread_condattr_t *how);
int old_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int old_signal(pthread_cond_t *condition);

static struct {
    pthread_cond_t condition;
    char after[16]; /* the new ones would write to all of theirs; the old ones to a pointer */
} old;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int phase, is_set;

static void set(void)
{
    MUST(pthread_mutex_lock(&mutex) == 0);
    is_set = 1;
    MUST(old_signal(&old.condition) == 0);
    MUST(pthread_mutex_unlock(&mutex) == 0);
}

int main(void)
{
    struct act act = {set, &phase, 1, getpid()};
    struct timespec time = {0, 5000000};
    pthread_t thread;

    memset(&old, 0x55, sizeof old);
    MUST(old_init(&old.condition, NULL) == 0);
    MUST(pthread_create(&thread, NULL, act_when_asleep, &act) == 0);
    MUST(pthread_mutex_lock(&mutex) == 0);
    __atomic_store_n(&phase, 1, __ATOMIC_RELEASE);
    while (!is_set)
        MUST(old_wait(&old.condition, &mutex) == 0);
    MUST(pthread_mutex_unlock(&mutex) == 0);
    while (pthread_tryjoin_np(thread, NULL))
        pause_ms(1);
    for (size_t i = sizeof(void *); i < sizeof old.condition; i++)
        MUST(((char *)&old.condition)[i] == 0x55);
    MUST(nanosleep(&time, NULL) == 0);
    return 0;
}
