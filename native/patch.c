/* Import slots live in DT_JMPREL (lazily bound calls) and DT_RELA (bound at load: -z now, -fno-plt,
 * function pointers in constant tables).  DT_RELR holds relative relocations only and no name. */
#include "patch.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "objects.h"

#if defined(__x86_64__)
#define SLOT_CALL R_X86_64_JUMP_SLOT
#define SLOT_DATA R_X86_64_GLOB_DAT
#define SLOT_ABSOLUTE R_X86_64_64
#elif defined(__aarch64__)
#define SLOT_CALL R_AARCH64_JUMP_SLOT
#define SLOT_DATA R_AARCH64_GLOB_DAT
#define SLOT_ABSOLUTE R_AARCH64_ABS64
#endif

#define OBJECTS_PER_CHUNK 256

struct slot {
    void **address;
    void *original;
    const struct hook *hook;
};

/* A loaded object.  The slots may be touched only while dl_iterate_phdr shows the object. */
struct object {
    uintptr_t base;
    const ElfW(Phdr) * headers;
    const ElfW(Dyn) * dynamic;
    uintptr_t end;
    uintptr_t relro, relro_end;
    struct slot *slots;
    size_t slots_bytes;
    uint32_t n_slots;
    uint32_t seen; /* the last pass with the object */
};

struct scan {
    uint32_t pass;
    bool is_new;
    bool restores;
    struct patch_counts counts;
};

bool patch_saw_framework;

static const struct hook **hooks, **hooks_end;
static struct object *objects; /* grows by doubling; anonymous memory of our own, never malloc */
static uint32_t n_objects, objects_room;
static uintptr_t own_base, libc_base, libc_end;
static uintptr_t page_size;
static uint32_t pass_number;
static unsigned long long last_adds, last_subs;

static void *map_memory(size_t bytes)
{
    void *memory = (void *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);

    return memory == MAP_FAILED ? NULL : memory;
}

/* --- names ------------------------------------------------------------------------------------ */

static int by_name(const void *left, const void *right)
{
    return strcmp((*(const struct hook *const *)left)->name,
                  (*(const struct hook *const *)right)->name);
}

/* A bit of `names` for the first eight characters of a name: a library of a framework imports ten
 * thousand functions, and nearly all are no hooks. */
#define NAMES_BITS 14

static uint64_t names[(1 << NAMES_BITS) / 64];

static uint32_t bit_of(const char *name)
{
    uint64_t word = 0;
    int i;

    for (i = 0; i < 8 && name[i]; i++)
        word = word << 8 | (uint8_t)name[i];
    return (uint32_t)(word * 0x9e3779b97f4a7c15u >> (64 - NAMES_BITS));
}

static void list_names(void)
{
    const struct hook **hook;

    for (hook = hooks; hook < hooks_end; hook++)
        names[bit_of((*hook)->name) / 64] |= 1ull << bit_of((*hook)->name) % 64;
}

static bool may_be_hook(const char *name)
{
    uint32_t bit = bit_of(name);

    return names[bit / 64] >> bit % 64 & 1;
}

/* Return the first hook of a name, where each version has a hook; NULL: none. */
static const struct hook **find_hook(const char *name)
{
    const struct hook wanted = {.name = name};
    const struct hook *key = &wanted;
    const struct hook **found =
        bsearch(&key, hooks, (size_t)(hooks_end - hooks), sizeof *hooks, by_name);

    while (found && found > hooks && !by_name(found - 1, found))
        found--;
    return found;
}

const struct hook *patch_find(const char *name)
{
    const struct hook **found = find_hook(name);

    return found ? *found : NULL;
}

bool patch_is_libc(const void *function)
{
    return (uintptr_t)function >= libc_base && (uintptr_t)function < libc_end;
}

/* A position-dependent program has stubs: dlsym reports a stub as the function itself.  dladdr
 * looks through all symbols of an object, 10 us in libc, a library without stubs. */
static bool is_stub(void *address)
{
    const ElfW(Sym) *symbol = NULL;
    Dl_info where;

    return !patch_is_libc(address) && dladdr1(address, &where, (void **)&symbol, RTLD_DL_SYMENT) &&
           symbol && symbol->st_shndx == SHN_UNDEF;
}

static void *look_up(void *handle, const struct hook *hook)
{
    return hook->version ? dlvsym(handle, hook->name, hook->version) : dlsym(handle, hook->name);
}

static void *original_of(const struct hook *hook)
{
    void *libc;
    void *address = look_up(RTLD_DEFAULT, hook);

    if (!address || !is_stub(address))
        return address;
    address = look_up(RTLD_NEXT, hook);
    if (address && !is_stub(address))
        return address;
    libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    return libc ? look_up(libc, hook) : NULL;
}

static int find_range(struct dl_phdr_info *info, size_t size, void *argument)
{
    uintptr_t *range = argument; /* an address; the object's bounds */
    uintptr_t end = 0;
    int i;

    (void)size;
    for (i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD)
            end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    if (range[0] < info->dlpi_addr || range[0] >= end)
        return 0;
    range[1] = info->dlpi_addr;
    range[2] = end;
    return 1;
}

#define PROVIDERS 16

/* Libraries other than libc with hooked functions: possibly late, or only for the importers, so no
 * look-up by name alone finds a library. */
static struct provider {
    const char *name; /* begins the library's file name */
    const char *path; /* the path of the loaded file; NULL: not seen */
    bool is_known;    /* the functions were looked up */
} providers[PROVIDERS];

static void list_providers(void)
{
    const struct hook **hook;
    size_t i;

    for (hook = hooks; hook < hooks_end; hook++) {
        for (i = 0; (*hook)->provider && i < PROVIDERS && providers[i].name; i++)
            if (!strcmp(providers[i].name, (*hook)->provider))
                break;
        if ((*hook)->provider && i < PROVIDERS)
            providers[i].name = (*hook)->provider;
    }
}

static int find_providers(struct dl_phdr_info *info, size_t size, void *argument)
{
    const char *slash = strrchr(info->dlpi_name, '/');
    struct provider *one;

    (void)size;
    for (one = providers; slash && one < providers + PROVIDERS && one->name; one++)
        if (!one->is_known && !strncmp(slash + 1, one->name, strlen(one->name))) {
            one->path = info->dlpi_name;
            *(bool *)argument = true;
        }
    return 0;
}

static bool look_up_all(void *library, const char *provider)
{
    const struct hook **hook;
    bool is_found = false;

    for (hook = hooks; hook < hooks_end; hook++) {
        if (!(*hook)->provider || *(*hook)->real || strcmp((*hook)->provider, provider))
            continue;
        *(*hook)->real = look_up(library, *hook);
        is_found |= *(*hook)->real != NULL;
    }
    return is_found;
}

/* Runs before objects are patched, so that importers of a library are patched together with the
 * library. */
static void find_late_originals(void)
{
    bool is_new = false;
    struct provider *one;

    dl_iterate_phdr(find_providers, &is_new);
    for (one = providers; is_new && one < providers + PROVIDERS; one++) {
        void *library = one->path ? dlopen(one->path, RTLD_LAZY | RTLD_NOLOAD) : NULL;

        one->path = NULL;
        if (!library)
            continue;
        one->is_known = look_up_all(library, one->name);
        dlclose(library); /* the importers keep the library */
    }
}

int patch_setup(const struct hook **first, const struct hook **end)
{
    uintptr_t libc[3] = {0};
    const struct hook **hook;
    Dl_info where;

    if (!hooks) {
        page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
        if (!dladdr((void *)patch_setup, &where))
            return -ENOTSUP;
        own_base = (uintptr_t)where.dli_fbase;
        libc[0] =
            (uintptr_t)(void *)getpid; /* resolved into libc: never hooked, never interposed */
        dl_iterate_phdr(find_range, libc);
        libc_base = libc[1];
        libc_end = libc[2];
        qsort(first, (size_t)(end - first), sizeof *first, by_name);
        hooks_end = end;
        hooks = first;
        list_names();
        list_providers();
    }
    for (hook = first; hook < end; hook++)
        if (!*(*hook)->real && !(*hook)->provider)
            *(*hook)->real = original_of(*hook);
    return 0;
}

/* --- slots ------------------------------------------------------------------------------------ */

static bool protect(const struct object *object, void **address, int protection)
{
    uintptr_t page = (uintptr_t)address & ~(page_size - 1);

    if ((uintptr_t)address < object->relro || (uintptr_t)address >= object->relro_end)
        return true;
    return !mprotect((void *)page, page_size, protection);
}

static bool write_slot(const struct object *object, void **address, void *value)
{
    if (!protect(object, address, PROT_READ | PROT_WRITE))
        return false;
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
    protect(object, address, PROT_READ);
    return true;
}

struct tables {
    const ElfW(Sym) * symbols;
    const char *names;
    const ElfW(Rela) * calls, *others;
    size_t n_calls, n_others;
    const ElfW(Half) * versions; /* of each symbol; NULL: linked without versions */
    const ElfW(Verneed) * needed;
};

/* ld.so turns most entries into addresses, but leaves the needed versions as an offset. */
static void read_tables(uintptr_t base, const ElfW(Dyn) * entry, struct tables *tables)
{
    size_t relative = 0;

    memset(tables, 0, sizeof *tables);
    for (; entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB: tables->symbols = (void *)entry->d_un.d_ptr; break;
        case DT_STRTAB: tables->names = (void *)entry->d_un.d_ptr; break;
        case DT_JMPREL: tables->calls = (void *)entry->d_un.d_ptr; break;
        case DT_PLTRELSZ: tables->n_calls = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
        case DT_RELA: tables->others = (void *)entry->d_un.d_ptr; break;
        case DT_RELASZ: tables->n_others = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
        case DT_RELACOUNT: relative = entry->d_un.d_val; break;
        case DT_VERSYM: tables->versions = (void *)entry->d_un.d_ptr; break;
        case DT_VERNEED:
            tables->needed =
                (void *)(entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr);
            break;
        default: break;
        }
    }
    if (relative <= tables->n_others) { /* relative entries come first and name no symbol */
        tables->others += relative;
        tables->n_others -= relative;
    }
}

static bool asks_for_version(const struct tables *tables, size_t symbol, const char *version)
{
    const char *at = (const char *)tables->needed;
    uint32_t wanted = tables->versions ? tables->versions[symbol] & 0x7fffu : 0;

    while (wanted && at) {
        const ElfW(Verneed) *library = (const void *)at;
        const char *named = at + library->vn_aux;
        unsigned i;

        for (i = 0; i < library->vn_cnt; i++) {
            const ElfW(Vernaux) *one = (const void *)named;

            if ((one->vna_other & 0x7fffu) == wanted)
                return !strcmp(tables->names + one->vna_name, version);
            named += one->vna_next;
        }
        at = library->vn_next ? at + library->vn_next : NULL;
    }
    return false;
}

static const struct hook *hook_of(const struct tables *tables, const ElfW(Rela) * relocation)
{
    uint32_t type = (uint32_t)ELF64_R_TYPE(relocation->r_info);
    const ElfW(Sym) *symbol = &tables->symbols[ELF64_R_SYM(relocation->r_info)];
    const struct hook **hook;

    if (type != SLOT_CALL && type != SLOT_DATA && type != SLOT_ABSOLUTE)
        return NULL;
    if (!ELF64_R_SYM(relocation->r_info) || symbol->st_shndx != SHN_UNDEF)
        return NULL;
    if (type == SLOT_ABSOLUTE && relocation->r_addend)
        return NULL;
    if (!may_be_hook(tables->names + symbol->st_name))
        return NULL;
    hook = find_hook(tables->names + symbol->st_name);
    for (; hook && hook < hooks_end && !strcmp((*hook)->name, tables->names + symbol->st_name);
         hook++)
        if (*(*hook)->real &&
            (!(*hook)->version ||
             asks_for_version(tables, ELF64_R_SYM(relocation->r_info), (*hook)->version)))
            return *hook;
    return NULL;
}

/* The values of a slot before a patch: the function called by the wrapper, another version of the
 * function in libc, the object's own function or the program's stub.  Any other value is another
 * tool's, and stays. */
static bool is_expected(const struct object *object, const void *value, const struct hook *hook)
{
    uintptr_t address = (uintptr_t)value;

    if (value == *hook->real || (address >= object->base && address < object->end))
        return true;
    return patch_is_libc(value) ||
           (n_objects && address >= objects[0].base && address < objects[0].end);
}

static void patch_table(struct object *object, const struct tables *tables,
                        const ElfW(Rela) * relocations, size_t n, struct scan *scan)
{
    size_t i;

    for (i = 0; i < n; i++) {
        const struct hook *hook = hook_of(tables, &relocations[i]);
        void **address = (void **)(object->base + relocations[i].r_offset);

        if (!hook || *address == hook->wrapper || !is_expected(object, *address, hook))
            continue;
        object->slots[object->n_slots] = (struct slot){address, *address, hook};
        if (write_slot(object, address, hook->wrapper))
            object->n_slots++;
        else
            scan->counts.failed++;
    }
}

static size_t count_slots(const struct tables *tables)
{
    size_t n = 0;
    size_t i;

    for (i = 0; i < tables->n_calls; i++)
        n += hook_of(tables, &tables->calls[i]) != NULL;
    for (i = 0; i < tables->n_others; i++)
        n += hook_of(tables, &tables->others[i]) != NULL;
    return n;
}

/* Give back the unused memory of an object's slots. */
static void trim_slots(struct object *object)
{
    size_t used = (object->n_slots * sizeof *object->slots + page_size - 1) & ~(page_size - 1);

    if (used >= object->slots_bytes)
        return;
    munmap((char *)object->slots + used, object->slots_bytes - used);
    object->slots_bytes = used;
    if (!used)
        object->slots = NULL;
}

/* Each import may be a slot: to count the slots first would take as long as to patch. */
static void patch_object(struct object *object, struct scan *scan)
{
    struct tables tables;
    size_t n;

    read_tables(object->base, object->dynamic, &tables);
    n = tables.n_calls + tables.n_others;
    if (!tables.symbols || !tables.names || !n)
        return;
    object->slots_bytes = (n * sizeof *object->slots + page_size - 1) & ~(page_size - 1);
    object->slots = map_memory(object->slots_bytes);
    if (!object->slots) {
        scan->counts.failed += (uint32_t)count_slots(&tables);
        return;
    }
    patch_table(object, &tables, tables.calls, tables.n_calls, scan);
    patch_table(object, &tables, tables.others, tables.n_others, scan);
    trim_slots(object);
}

/* A thread resolving a lazy slot during the write may have put the function back; an object
 * unloaded and loaded again at the old place has fresh slots. */
static void check_object(struct object *object)
{
    uint32_t i;

    for (i = 0; i < object->n_slots; i++)
        if (*object->slots[i].address != object->slots[i].hook->wrapper)
            write_slot(object, object->slots[i].address, object->slots[i].hook->wrapper);
}

static void restore_object(struct object *object)
{
    uint32_t i;

    for (i = 0; i < object->n_slots; i++)
        if (*object->slots[i].address == object->slots[i].hook->wrapper)
            write_slot(object, object->slots[i].address, object->slots[i].original);
}

/* --- objects ---------------------------------------------------------------------------------- */

static bool is_ours_to_patch(const struct dl_phdr_info *info)
{
    /* libcufile's own reads belong to recorded calls into libcufile: see hooks_cufile.c. */
    static const char *const skipped[] = {"linux-vdso",    "ld-linux",  "libc.so",
                                          "libpthread.so", "libdl.so",  "librt.so",
                                          "ld64.so",       "libcufile", NULL};
    static const char *const frameworks[] = {"libtorch_python", "libtensorflow_framework",
                                             "libjax_common", "_jax.so", NULL};
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash ? slash + 1 : info->dlpi_name;
    const char *const *skip, *const *seen;

    for (skip = skipped; *skip; skip++)
        if (!strncmp(name, *skip, strlen(*skip)))
            return false;
    for (seen = frameworks; *seen; seen++)
        if (!strncmp(name, *seen, strlen(*seen)))
            patch_saw_framework = true;
    return info->dlpi_addr != own_base;
}

/* Objects appear in load order: `likely` is the object's place unless an object was unloaded. */
static struct object *find_object(const struct dl_phdr_info *info, uint32_t likely)
{
    uint32_t i;

    if (likely < n_objects && objects[likely].base == info->dlpi_addr &&
        objects[likely].headers == info->dlpi_phdr)
        return &objects[likely];
    for (i = 0; i < n_objects; i++)
        if (objects[i].base == info->dlpi_addr && objects[i].headers == info->dlpi_phdr)
            return &objects[i];
    return NULL;
}

static struct object *new_object(const struct dl_phdr_info *info)
{
    struct object *object;
    int i;

    if (n_objects == objects_room) {
        uint32_t room = objects_room ? objects_room * 2 : OBJECTS_PER_CHUNK;
        struct object *larger = map_memory(room * sizeof *larger);

        if (!larger)
            return NULL;
        if (objects) {
            memcpy(larger, objects, n_objects * sizeof *objects);
            munmap(objects, objects_room * sizeof *objects);
        }
        objects = larger;
        objects_room = room;
    }
    object = &objects[n_objects]; /* counted below: a fork in between must not see half an object */
    memset(object, 0, sizeof *object);
    object->base = info->dlpi_addr;
    object->headers = info->dlpi_phdr;
    for (i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;

        if (info->dlpi_phdr[i].p_type == PT_LOAD &&
            start + info->dlpi_phdr[i].p_memsz > object->end)
            object->end = start + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            object->dynamic = (void *)start;
        if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO) {
            /* As ld.so: whole pages only, so the last partial page stays writable. */
            object->relro = start & ~(page_size - 1);
            object->relro_end = (start + info->dlpi_phdr[i].p_memsz) & ~(page_size - 1);
        }
    }
    n_objects++;
    objects_add(object->base, object->end, info->dlpi_name);
    return object;
}

static int visit(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct scan *scan = argument;
    struct object *object = find_object(info, scan->counts.objects);

    (void)size;
    scan->counts.objects++;
    if (scan->restores) {
        if (object)
            restore_object(object);
        return 0;
    }
    if (object) {
        check_object(object);
    } else {
        object = new_object(info);
        if (!object)
            return 0;
        if (is_ours_to_patch(info)) {
            scan->is_new = true;
            if (object->dynamic)
                patch_object(object, scan);
        }
    }
    object->seen = scan->pass;
    scan->counts.slots += object->n_slots;
    return 0;
}

static void forget(uint32_t i)
{
    if (objects[i].slots)
        munmap(objects[i].slots, objects[i].slots_bytes);
    objects_remove(objects[i].base);
    objects[i] = objects[--n_objects];
}

static void forget_unloaded(uint32_t pass)
{
    uint32_t i = 0;

    while (i < n_objects)
        if (objects[i].seen == pass)
            i++;
        else
            forget(i);
}

void patch_apply(struct patch_counts *counts)
{
    struct scan scan = {.pass = ++pass_number};

    find_late_originals();
    dl_iterate_phdr(visit, &scan);
    forget_unloaded(scan.pass);
    *counts = scan.counts;
}

void patch_restore(void)
{
    struct scan scan = {.restores = true};

    dl_iterate_phdr(visit, &scan);
    while (n_objects)
        forget(n_objects - 1);
    last_adds = last_subs = 0;
}

static int read_changes(struct dl_phdr_info *info, size_t size, void *argument)
{
    unsigned long long *changes = argument;

    (void)size;
    changes[0] = info->dlpi_adds;
    changes[1] = info->dlpi_subs;
    return 1;
}

bool patch_rescan(void)
{
    struct scan scan = {.pass = pass_number + 1};
    unsigned long long changes[2];

    dl_iterate_phdr(read_changes, changes);
    if (changes[0] == last_adds && changes[1] == last_subs)
        return false;
    last_adds = changes[0];
    last_subs = changes[1];
    pass_number++;
    find_late_originals();
    dl_iterate_phdr(visit, &scan);
    forget_unloaded(scan.pass);
    return scan.is_new;
}
