/* After a window every object is as it was: no pointer into the recorder is left in any of them,
 * and every page has its protection back.  Looked up in memory, not asked of the recorder. */
#include "logs.h"

#include <link.h>
#include <stdbool.h>

struct range {
    uintptr_t start, end;
};

static struct range recorder;

static int find_recorder(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (!strstr(info->dlpi_name, "librec"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];

        if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
            recorder.start = info->dlpi_addr + part->p_vaddr;
            recorder.end = recorder.start + part->p_memsz;
        }
    }
    return 1;
}

/* Words of an object's data that point into the recorder's code. */
__attribute__((no_sanitize("address"))) static int count_pointers(struct dl_phdr_info *info,
                                                                  size_t size, void *total)
{
    (void)size;
    if (strstr(info->dlpi_name, "librec") || strstr(info->dlpi_name, "san"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        const uintptr_t *word = (const void *)(info->dlpi_addr + part->p_vaddr);

        if (part->p_type != PT_LOAD || !(part->p_flags & PF_W))
            continue;
        word = (const void *)(((uintptr_t)word + 7) & ~(uintptr_t)7);
        for (size_t n = part->p_filesz / sizeof *word - 1; n; n--, word++)
            if (*word >= recorder.start && *word < recorder.end)
                ++*(int *)total;
    }
    return 0;
}

static int pointers(void)
{
    int total = 0;

    dl_iterate_phdr(count_pointers, &total);
    return total;
}

/* The lines of /proc/self/maps that belong to an object: ranges and protections. */
static size_t protections(char *text, size_t room)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[4096];
    size_t used = 0;

    MUST(maps);
    while (fgets(line, sizeof line, maps)) {
        size_t length = strlen(line);

        if (!strstr(line, ".so") && !strstr(line, "slots"))
            continue;
        MUST(used + length < room);
        memcpy(text + used, line, length + 1);
        used += length;
    }
    fclose(maps);
    return used;
}

int main(void)
{
    static char before[1 << 20], after[1 << 20];
    char folder[4096];
    int fd = new_folder(folder, sizeof folder), own;

    dl_iterate_phdr(find_recorder, NULL);
    MUST(recorder.start);
    own = pointers(); /* our own imports of its functions */
    MUST(protections(before, sizeof before));
    for (int i = 0; i < 3; i++) {
        MUST(penstock_start(folder, 0) == 0);
        MUST(pointers() > own);
        do_preads(fd, 10);
        MUST(penstock_stop() == 0);
        MUST(pointers() == own);
        MUST(protections(after, sizeof after));
        MUST(!strcmp(before, after));
    }
    MUST(count_folder(folder, OP_PREAD).finished == 30);
    remove_folder(folder);
    return 0;
}
