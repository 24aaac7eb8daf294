/* How much memory is really free: of the machine, and of each control group of this process.  The
 * kernel counts the page cache as available; half counts here, as the rest may belong to the
 * job. */
#include "ahead.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARE 2
#define PRESSED_PERCENT 10.0 /* of the last 10 s some task waited for memory */
#define UNLIMITED (1ull << 60)

/* A number of a file: the first, or after `key`. */
static bool number_in(const char *folder, const char *name, const char *key, uint64_t *number)
{
    char path[PATH_MAX], line[256];
    bool is_found = false;
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "re");
    while (file && !is_found && fgets(line, sizeof line, file)) {
        size_t length = strlen(key);

        if (!strncmp(line, key, length)) {
            *number = strncmp(line, "max", 3) ? strtoull(line + length, NULL, 10) : UINT64_MAX;
            is_found = true;
        }
    }
    if (file)
        fclose(file);
    return is_found;
}

static uint64_t room_of_group(const char *folder, bool is_v2)
{
    uint64_t limit, used, active = 0, inactive = 0;

    if (!number_in(folder, is_v2 ? "memory.max" : "memory.limit_in_bytes", "", &limit) ||
        !number_in(folder, is_v2 ? "memory.current" : "memory.usage_in_bytes", "", &used) ||
        limit > UNLIMITED)
        return UINT64_MAX;
    number_in(folder, "memory.stat", is_v2 ? "inactive_file " : "total_inactive_file ", &inactive);
    number_in(folder, "memory.stat", is_v2 ? "active_file " : "total_active_file ", &active);
    used -= used < active + inactive ? used : active + inactive;
    return limit > used ? limit - used : 0;
}

/* The groups of our line in /proc/self/cgroup, up to the root. */
static uint64_t room_of_groups(void)
{
    char line[PATH_MAX], folder[2 * PATH_MAX];
    uint64_t room = UINT64_MAX;
    FILE *groups = fopen("/proc/self/cgroup", "re");

    while (groups && fgets(line, sizeof line, groups)) {
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        bool is_v2;
        char *slash;

        if (!path)
            continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        is_v2 = !controllers[1];
        if (!is_v2 && !strstr(controllers, "memory"))
            continue;
        snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", is_v2 ? "" : "/memory", path);
        for (;;) {
            uint64_t here = room_of_group(folder, is_v2);

            room = here < room ? here : room;
            slash = strrchr(folder, '/');
            if (!slash || slash < folder + strlen("/sys/fs/cgroup"))
                break;
            *slash = 0;
        }
    }
    if (groups)
        fclose(groups);
    return room;
}

uint64_t room_bytes(void)
{
    uint64_t available = 0, groups = room_of_groups();

    number_in("/proc", "meminfo", "MemAvailable:", &available);
    available *= 1024;
    return (groups < available ? groups : available) / SHARE;
}

bool room_is_pressed(void)
{
    FILE *file = fopen("/proc/pressure/memory", "re");
    double some = 0;

    if (!file)
        return false;
    if (fscanf(file, "some avg10=%lf", &some) != 1)
        some = 0;
    fclose(file);
    return some > PRESSED_PERCENT;
}
