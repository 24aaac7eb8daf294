/* Calls whose numbers do not fit an event's own fields: known at their begin (spans, mappings), only
 * at their end (a stream that was moved behind stdio's back), or carried from block to block. */
#include "logs.h"

#define FAR (5ll << 30)

static void move_a_stream(const char *path)
{
    FILE *file = fopen(path, "r");

    MUST(file && lseek(fileno(file), FAR, SEEK_SET) == FAR);
    MUST(fclose(file) == 0);
}

int main(void)
{
    char folder[4096];
    int fd = new_folder(folder, sizeof folder);
    struct counted counted;
    uint64_t span;
    void *memory;

    MUST(penstock_start(folder, 0) == 0);
    span = penstock_begin(OP_STEP, penstock_name("step"), 1);
    move_a_stream(path_in(folder, "data"));
    memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    MUST(memory != MAP_FAILED);
    do_preads(fd, 5000); /* more than two blocks hold */
    move_a_stream(path_in(folder, "data"));
    MUST(penstock_end(span, 1ull << 40, 3ull << 40) == 0);
    MUST(penstock_stop() == 0);
    counted = count_folder(folder, OP_FCLOSE);
    MUST(counted.finished == 2 && counted.in_flight == 0 && counted.moved == 2 * FAR);
    counted = count_folder(folder, OP_MMAP);
    MUST(counted.finished == 1 && counted.moved == (uintptr_t)memory);
    counted = count_folder(folder, OP_STEP);
    MUST(counted.finished == 1 && counted.in_flight == 0 && counted.moved == 3ull << 40);
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.finished == 5000 && counted.moved == 5000 * 64);
    remove_folder(folder);
    return 0;
}
