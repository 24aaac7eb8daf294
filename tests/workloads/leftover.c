/* leftover [allocator | handler]: waits in a call until SIGTERM.  Its stack holds what looks like
 * returns into the loader, as the loader's own calls leave them there when a program begins; or into
 * free(), as an earlier call leaves them there.  It is in none of them.  handler: it waits in the
 * handler of a signal, so that it could be in free() for all that its stack tells. */
#include <elf.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

enum { CALL = 0xe8, CALL_BYTES = 5, WORDS = 64 };

static volatile sig_atomic_t is_over;

static void end(int number)
{
    (void)number;
    is_over = 1;
}

static void wait_in_handler(int number)
{
    (void)number;
    while (!is_over)
        pause();
}

/* An address in free() right behind a call. */
static uintptr_t behind_a_call_of_free(void)
{
    const unsigned char *code = (const void *)(uintptr_t)free;
    int i;

    for (i = 0; i < 256; i++, code++)
        if (*code == CALL)
            return (uintptr_t)code + CALL_BYTES;
    return 0;
}

/* An address in the loader's code right behind a call. */
static uintptr_t behind_a_call(void)
{
    uintptr_t base = getauxval(AT_BASE);
    const Elf64_Ehdr *header = (const void *)base;
    const Elf64_Phdr *segment = (const void *)(base + header->e_phoff);
    int i;

    for (i = 0; i < header->e_phnum; i++, segment++) {
        const unsigned char *code = (const void *)(base + segment->p_vaddr);
        const unsigned char *last = code + segment->p_filesz - CALL_BYTES;

        if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X))
            continue;
        for (code += 16; code < last; code++)
            if (*code == CALL)
                return (uintptr_t)code + CALL_BYTES;
    }
    return 0;
}

int main(int argc, char **argv)
{
    volatile uintptr_t left[WORDS];
    uintptr_t place = argc > 1 ? behind_a_call_of_free() : behind_a_call();
    int i;

    for (i = 0; i < WORDS; i++)
        left[i] = place;
    signal(SIGTERM, end);
    printf("begun\n");
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "handler")) {
        signal(SIGUSR1, wait_in_handler);
        raise(SIGUSR1);
    }
    while (!is_over)
        pause();
    for (i = 0; i < WORDS; i++)
        if (!place || left[i] != place)
            return 1;
    printf("fine\n");
    return 0;
}
