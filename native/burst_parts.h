/* Shared by the files of the burst buffer: the state, the memory of a call, names on the tier. */
#ifndef PENSTOCK_BURST_PARTS_H
#define PENSTOCK_BURST_PARTS_H

#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "burst.h"
#include "clock.h"

#define PATH_BYTES 4096

#define DATA "/data/"
#define HOME "/home/"

#define TARGET_BYTES (BURST_FOLDER_BYTES + BURST_NAME_BYTES + 16) /* of a link, and a zero */

#define MOST_NAME_BYTES 200 /* of the program's name: ours is longer, and 255 is the end */
#define MOST_HOME_BYTES (PATH_BYTES - 64) /* likewise of the program's path */

#ifndef CIFS_SUPER_MAGIC /* as in older headers */
#define CIFS_SUPER_MAGIC 0xff534d42u
#define SMB2_SUPER_MAGIC 0xfe534d42u
#endif

struct burst {
    char folder[BURST_FOLDER_BYTES];
    char data[BURST_FOLDER_BYTES + sizeof DATA]; /* with the final slash */
    char home[BURST_FOLDER_BYTES + sizeof HOME];
    size_t tier_bytes, data_bytes; /* of the folder above `folder` */
    char patterns[PATH_BYTES];
    uint32_t run; /* the files' owner: 24 bits, unique for a run */
};

/* Further memory of a call: mapped for the call, as a handler's stack may hold no page. */
struct work {
    char name[BURST_NAME_BYTES]; /* on the tier */
    char data[BURST_FOLDER_BYTES + BURST_NAME_BYTES + 16];
    char home_link[BURST_FOLDER_BYTES + BURST_NAME_BYTES + 16];
    char beside[BURST_NAME_BYTES + 32]; /* a name in the program's folder */
    char was[BURST_NAME_BYTES + 32];
    char home[2 * PATH_BYTES]; /* the program's path, absolute */
    char text[PATH_BYTES + 16];
    char path[PATH_BYTES];
    char older[BURST_NAME_BYTES];
    char way[BURST_FOLDER_BYTES + BURST_NAME_BYTES + 16];
    char marked[BURST_FOLDER_BYTES + BURST_NAME_BYTES + 32];
    char *base; /* the last part of home */
    struct stat found;
    uint64_t made_ns; /* the time in a new name */
    int parent;
};

enum before { NOTHING, A_FILE, OUR_LINK, ELSE };

enum kept { NOT_KEPT, KEPT, KEPT_BEFORE };

struct listing {
    int folder;
    char *room; /* PATH_BYTES */
    long got, at;
};

#pragma GCC visibility push(hidden)

struct work *burst_work_begin(void);
void burst_work_end(struct work *work);
const char *burst_name_on_tier(const struct burst *state, const char *path);
bool burst_read_link(const struct burst *state, int dirfd, const char *path, char *name);
void burst_set_name(const struct burst *state, struct work *work, const char *name);
void burst_set_beside(char *beside, const char *name, const char *end);
void burst_set_is_marked(const struct burst *state, struct work *work, const char *name,
                         bool is_marked);
bool burst_find_folder(struct work *work, int dirfd, const char *path);
void burst_new_name(const struct burst *state, struct work *work, bool is_first);
enum kept burst_keep_file(int parent, const char *base, const char *was);
bool burst_name_exists(int parent, const char *name);
bool burst_set_link(const struct burst *state, struct work *work, enum before before);
bool burst_is_below_tier(const struct burst *state, const char *path);
bool burst_copy_bytes(int from, int to, int64_t bytes);
const char *burst_next_name(struct listing *list);
void burst_end_listing(const struct listing *list);
void burst_turn_fd(int fd, int to);
bool burst_bring_older(const struct burst *state, struct work *work);
void *burst_map_private(size_t bytes);

#pragma GCC visibility pop

#endif
