/* Opens by a tier's map: the copy where all is as it was staged, the original for anything else,
 * and no harm from a map whose bytes are any. */
#include "logs.h"

#include "staged.h"

#define MAP_BYTES 4096
#define SLOTS 8
#define ROUNDS 600

static char source[4096], copy[4200], map_file[4200];
static char good[MAP_BYTES];

static uint64_t hash_of(const char *path)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *path; path++)
        hash = (hash ^ (uint8_t)*path) * 0x100000001b3u;
    return hash;
}

static void make_folders(const char *path)
{
    char folder[4200];

    for (const char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(at - path), path);
        MUST(!mkdir(folder, 0700) || errno == EEXIST);
    }
}

static void write_file(const char *path, const void *data, size_t size)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);

    MUST(fd >= 0 && write(fd, data, size) == (ssize_t)size && !close(fd));
}

static uint64_t put_text(char *map, size_t *at, const char *text)
{
    uint64_t place = *at;

    strcpy(map + *at, text);
    *at += strlen(text) + 1;
    return place;
}

static void make_map(const char *tier)
{
    struct staged_header *header = (void *)good;
    struct staged_slot *slots = (void *)(header + 1);
    uint64_t hash = hash_of(source);
    struct staged_slot *slot = &slots[(hash ^ hash >> 32) & (SLOTS - 1)];
    size_t at = sizeof *header + SLOTS * sizeof *slots + 1;
    struct stat found;

    MUST(!stat(source, &found));
    *header = (struct staged_header){.magic = STAGED_MAGIC,
                                     .version = 1,
                                     .byte_order = STAGED_BYTE_ORDER,
                                     .slots = SLOTS,
                                     .slots_at = sizeof *header,
                                     .entries = 1,
                                     .slot_bytes = sizeof *slots,
                                     .map_bytes = MAP_BYTES,
                                     .tier_bytes = (uint32_t)strlen(tier)};
    header->tier_at = put_text(good, &at, tier);
    *slot = (struct staged_slot){.hash = hash,
                                 .path_bytes = (uint32_t)strlen(source),
                                 .copy_bytes = (uint32_t)strlen(copy),
                                 .size_bytes = (uint64_t)found.st_size,
                                 .mtime_s = found.st_mtim.tv_sec,
                                 .mtime_ns = (uint32_t)found.st_mtim.tv_nsec,
                                 .ctime_s = found.st_ctim.tv_sec,
                                 .ctime_ns = (uint32_t)found.st_ctim.tv_nsec,
                                 .inode = found.st_ino,
                                 .device = found.st_dev,
                                 .flags = STAGED_COMPARE_INODE,
                                 .is_staged = 1};
    slot->copy_at = put_text(good, &at, copy);
    __atomic_store_n(&slot->path_at, put_text(good, &at, source), __ATOMIC_RELEASE);
    write_file(map_file, good, sizeof good);
}

static char first_byte(void)
{
    int fd = open(source, O_RDONLY);
    struct stat by_name, by_fd;
    char byte = 0;

    MUST(fd >= 0 && pread(fd, &byte, 1, 0) == 1);
    MUST(!stat(source, &by_name) && !fstat(fd, &by_fd) && !close(fd));
    return byte;
}

/* Calls whose way leads through the map. */
static void use_all(void)
{
    char link[64], name[4096];
    struct stat found;
    int fd = open(source, O_RDONLY);

    MUST(fd >= 0 && !fstat(fd, &found));
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    MUST(readlink(link, name, sizeof name) > 0 && !stat(link, &found) && !close(fd));
    MUST(rename("/missing/a", source) && unlink("/missing/b"));
}

static void damage(unsigned *random)
{
    char bad[MAP_BYTES];
    size_t size = MAP_BYTES;
    int n = 1 + rand_r(random) % 8;

    memcpy(bad, good, sizeof bad);
    while (n--) {
        size_t at = (size_t)rand_r(random) % (sizeof(struct staged_header) + 900);

        if (rand_r(random) % 2)
            bad[at] = (char)rand_r(random);
        else
            memset(bad + at / 8 * 8, rand_r(random) % 2 ? 0xff : 0, 8);
    }
    if (rand_r(random) % 8 == 0)
        size = (size_t)rand_r(random) % MAP_BYTES;
    write_file(map_file, bad, size);
}

int main(void)
{
    char folder[4096], tier[] = "/tmp/penstock-tier-XXXXXX";
    int fd = new_folder(folder, sizeof folder);
    struct timespec times[2] = {{1600000000, 5}, {1600000000, 5}};
    unsigned random = 7;
    char command[64];

    MUST(!ftruncate(fd, 0) && pwrite(fd, "o", 1, 0) == 1 && !futimens(fd, times) && !close(fd));
    MUST(mkdtemp(tier));
    snprintf(source, sizeof source, "%s", path_in(folder, "data"));
    snprintf(copy, sizeof copy, "%s/staged%s", tier, source);
    snprintf(map_file, sizeof map_file, "%s/.penstock/staged.map", tier);
    make_folders(copy);
    make_folders(map_file);
    write_file(copy, "c", 1);
    MUST(!utimensat(AT_FDCWD, copy, times, 0));
    make_map("fast");

    MUST(first_byte() == 'o');
    MUST(penstock_staged("/missing/map") == -ENOENT && penstock_staged(source) == -EINVAL);
    MUST(!penstock_staged(map_file) && first_byte() == 'o'); /* nothing is patched yet */
    MUST(!penstock_start(folder, 0) && penstock_staged(map_file) == -EALREADY);
    MUST(first_byte() == 'c');
    MUST(!penstock_pause(0) && first_byte() == 'c' && !penstock_resume() && first_byte() == 'c');
    use_all();
    MUST(!penstock_stop() && first_byte() == 'o');

    for (int i = 0; i < ROUNDS; i++) {
        damage(&random);
        penstock_staged(map_file); /* refused, or taken for what it says */
        MUST(!penstock_start(folder, 0));
        MUST(first_byte() == 'o' || first_byte() == 'c');
        use_all();
        MUST(!penstock_stop());
    }
    snprintf(command, sizeof command, "rm -rf %s", tier);
    MUST(!system(command));
    remove_folder(folder);
    return 0;
}
