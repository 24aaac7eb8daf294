#include "target.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE 4352 /* a path and the columns before */
#define STACK_BYTES (1 << 20)
/* The owner of the process may have put anything there: the limits exceed every C library's
 * needs. */
#define SYMBOLS_MAX 4096          /* of a bucket */
#define DYNAMIC_MAX 4096          /* entries of an object's dynamic section */
#define UNSAFE_MAX 1024           /* functions and objects */
#define GADGET_BYTES (256u << 20) /* of libc's code */

/* Inside these functions a thread may hold a lock of dlopen: the allocator's functions, listed
 * first, and the loader's.  fork takes all the locks. */
static const char *const busy_functions[] = {"malloc",
                                             "free",
                                             "calloc",
                                             "realloc",
                                             "memalign",
                                             "aligned_alloc",
                                             "posix_memalign",
                                             "valloc",
                                             "pvalloc",
                                             "malloc_trim",
                                             "malloc_info",
                                             "mallinfo",
                                             "mallinfo2",
                                             "mallopt",
                                             "fork",
                                             "_Fork",
                                             "vfork",
                                             "__libc_fork",
                                             "dlopen",
                                             "dlclose",
                                             "dlsym",
                                             "dlvsym",
                                             "dlmopen",
                                             "dl_iterate_phdr",
                                             "dladdr",
                                             "dladdr1",
                                             "exit",
                                             "__cxa_atexit",
                                             "pthread_create",
                                             "__libc_dlopen_mode",
                                             "__register_atfork",
                                             "__cxa_finalize"};

/* A mapping of /proc/PID/maps. */
struct mapping {
    struct range range;
    uint64_t offset;
    bool is_code;
    const char *path; /* in the line; "" for memory without a file */
};

static FILE *open_maps(pid_t pid)
{
    char path[40];

    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    return fopen(path, "re");
}

static bool next_mapping(FILE *maps, char *line, struct mapping *mapping)
{
    unsigned long long begin, end, offset;
    char access[5];
    int at = 0;

    if (!fgets(line, LINE, maps) ||
        sscanf(line, "%llx-%llx %4s %llx %*s %*s %n", &begin, &end, access, &offset, &at) < 4)
        return false;
    line[strcspn(line, "\n")] = 0;
    *mapping = (struct mapping){{begin, end}, offset, access[2] == 'x', line + at};
    return true;
}

int target_read(const struct target *target, uint64_t address, void *data, size_t size)
{
    ssize_t got = pread(target->mem, data, size, (off_t)address);

    return got < 0 ? -errno : (size_t)got == size ? 0 : -EIO;
}

int target_write(const struct target *target, uint64_t address, const void *data, size_t size)
{
    ssize_t got = pwrite(target->mem, data, size, (off_t)address);

    return got < 0 ? -errno : (size_t)got == size ? 0 : -EIO;
}

/* --- symbols, from the object in memory: the file may be replaced or out of reach ------------- */

struct symbols {
    uint64_t base, table, names, names_size, hash;
};

static int read_symbols(const struct target *target, uint64_t base, struct symbols *symbols)
{
    Elf64_Ehdr header;
    Elf64_Phdr segment = {0};
    Elf64_Dyn entry;
    uint64_t at;
    int i, n;

    *symbols = (struct symbols){.base = base};
    if (target_read(target, base, &header, sizeof header) ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_ident[EI_CLASS] != ELFCLASS64)
        return -ENOEXEC;
    for (i = 0; i < header.e_phnum && segment.p_type != PT_DYNAMIC; i++)
        if (target_read(target, base + header.e_phoff + (uint64_t)i * sizeof segment, &segment,
                        sizeof segment))
            return -ENOEXEC;
    if (segment.p_type != PT_DYNAMIC)
        return -ENOEXEC;
    at = base + segment.p_vaddr;
    for (n = 0; n < DYNAMIC_MAX; n++, at += sizeof entry) {
        uint64_t value;

        if (at >= base + segment.p_vaddr + segment.p_memsz ||
            target_read(target, at, &entry, sizeof entry) || entry.d_tag == DT_NULL)
            break;
        /* The loader has turned most values into addresses; some values stay as in the file. */
        value = entry.d_un.d_ptr < base ? base + entry.d_un.d_ptr : entry.d_un.d_ptr;
        if (entry.d_tag == DT_SYMTAB)
            symbols->table = value;
        else if (entry.d_tag == DT_STRTAB)
            symbols->names = value;
        else if (entry.d_tag == DT_STRSZ)
            symbols->names_size = entry.d_un.d_val;
        else if (entry.d_tag == DT_GNU_HASH)
            symbols->hash = value;
    }
    return symbols->table && symbols->names && symbols->hash ? 0 : -ENOEXEC;
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t hash = 5381;

    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static bool has_name(const struct target *target, const struct symbols *symbols,
                     const Elf64_Sym *symbol, const char *name)
{
    char found[64];
    size_t size = strlen(name) + 1;

    return size <= sizeof found && symbol->st_name + size <= symbols->names_size &&
           !target_read(target, symbols->names + symbol->st_name, found, size) &&
           !memcmp(found, name, size);
}

/* Find the function's code; begin 0: the object does not export the name. */
static struct range find_function(const struct target *target, const struct symbols *symbols,
                                  const char *name)
{
    /* buckets, first symbol in a bucket, words of the filter, shift of the filter */
    uint32_t head[4];
    uint32_t wanted = gnu_hash(name);
    uint32_t i, n, hash = 0;
    uint64_t buckets, chains;
    Elf64_Sym symbol;

    if (target_read(target, symbols->hash, head, sizeof head) || !head[0])
        return (struct range){0, 0};
    buckets = symbols->hash + sizeof head + 8ull * head[2];
    chains = buckets + 4ull * head[0];
    if (target_read(target, buckets + 4ull * (wanted % head[0]), &i, sizeof i) || i < head[1])
        return (struct range){0, 0};
    for (n = 0; !(hash & 1) && n < SYMBOLS_MAX; n++, i++) {
        if (target_read(target, chains + 4ull * (i - head[1]), &hash, sizeof hash) ||
            target_read(target, symbols->table + (uint64_t)i * sizeof symbol, &symbol,
                        sizeof symbol))
            break;
        if ((hash | 1) == (wanted | 1) && symbol.st_value && symbol.st_shndx != SHN_UNDEF &&
            ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && has_name(target, symbols, &symbol, name))
            return (struct range){symbols->base + symbol.st_value,
                                  symbols->base + symbol.st_value + symbol.st_size};
    }
    return (struct range){0, 0};
}

uint64_t target_function(const struct target *target, const char *path, const char *name)
{
    char line[LINE];
    struct mapping mapping;
    struct symbols symbols;
    FILE *maps = open_maps(target->pid);
    uint64_t found = 0;

    while (maps && !found && next_mapping(maps, line, &mapping))
        if (!mapping.offset && !strcmp(mapping.path, path) &&
            !read_symbols(target, mapping.range.begin, &symbols))
            found = find_function(target, &symbols, name).begin;
    if (maps)
        fclose(maps);
    return found;
}

/* --- unsafe code ------------------------------------------------------------------------------ */

static int add_unsafe(struct target *target, struct range range)
{
    struct range *grown;

    if (!range.begin)
        return 0;
    if (target->n_unsafe == UNSAFE_MAX)
        return -E2BIG;
    grown = realloc(target->unsafe, (target->n_unsafe + 1) * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    target->unsafe = grown;
    target->unsafe[target->n_unsafe++] = range;
    return 0;
}

static bool is_libc(const char *name)
{
    return !strncmp(name, "libc.so.6", 9) || (!strncmp(name, "libc-2.", 7) && strstr(name, ".so"));
}

static bool is_loader(const char *name)
{
    return !strncmp(name, "ld-linux", 8) || (!strncmp(name, "ld-2.", 5) && strstr(name, ".so"));
}

static int find_gadget(struct target *target)
{
    static const unsigned char instruction[] = {0x0f, 0x05};
    unsigned char page[4096];
    uint64_t at, end = target->libc.end;
    size_t i;

    if (end - target->libc.begin > GADGET_BYTES)
        end = target->libc.begin + GADGET_BYTES;
    for (at = target->libc.begin; at + sizeof page <= end; at += sizeof page) {
        if (target_read(target, at, page, sizeof page))
            return -EIO;
        for (i = 0; i + 1 < sizeof page; i++)
            if (!memcmp(page + i, instruction, sizeof instruction)) {
                target->gadget = at + i;
                return 0;
            }
    }
    return -ENOEXEC;
}

static int use_object(struct target *target, uint64_t base, bool has_libc)
{
    struct symbols symbols;
    int error = read_symbols(target, base, &symbols);
    size_t i;

    if (error)
        return error;
    for (i = 0; !error && i < sizeof busy_functions / sizeof *busy_functions; i++) {
        struct range found = find_function(target, &symbols, busy_functions[i]);

        if (has_libc && i < N_ALLOCATOR && target->n_allocator < N_ALLOCATOR)
            target->allocator[target->n_allocator++] = found;
        error = add_unsafe(target, found);
    }
    if (!target->dlopen && !(target->dlopen = find_function(target, &symbols, "dlopen").begin) &&
        has_libc) /* older C libraries have dlopen in another library, possibly not loaded */
        target->dlopen = find_function(target, &symbols, "__libc_dlopen_mode").begin;
    if (!target->dlerror)
        target->dlerror = find_function(target, &symbols, "dlerror").begin;
    return error;
}

/* Learn from a mapping of the process the object, and the code that may hold a lock. */
static int take_mapping(struct target *target, const struct mapping *mapping, uint64_t base)
{
    const char *slash = strrchr(mapping->path, '/');
    const char *name = slash ? slash + 1 : mapping->path;
    int error = 0;

    if (!mapping->offset && is_libc(name) && !target->libc.begin)
        error = use_object(target, base, true);
    else if (!mapping->offset && !strncmp(name, "libdl", 5) && strstr(name, ".so"))
        error = use_object(target, base, false);
    if (!mapping->is_code || error)
        return error;
    if (is_libc(name))
        target->libc = mapping->range;
    else if (is_loader(name))
        error = add_unsafe(target, target->loader = mapping->range);
    else if (strstr(name, "malloc")) /* replaces libc's allocator: all the code may hold locks */
        error = add_unsafe(target, mapping->range);
    return error;
}

int target_open(struct target *target, pid_t pid)
{
    char path[40], line[LINE];
    struct mapping mapping;
    uint64_t base = 0;
    int error = 0;
    FILE *maps;

    *target = (struct target){.pid = pid};
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    target->mem = open(path, O_RDWR | O_CLOEXEC);
    if (target->mem < 0)
        return -errno;
    maps = open_maps(pid);
    if (!maps) {
        error = -errno;
        goto close_mem;
    }
    while (!error && next_mapping(maps, line, &mapping)) {
        if (!mapping.offset)
            base = mapping.range.begin;
        error = take_mapping(target, &mapping, base);
    }
    fclose(maps);
    if (!error && (!target->libc.begin || !target->loader.begin || !target->dlopen))
        error = -ENOEXEC;
    if (!error)
        error = find_gadget(target);
    if (!error)
        return 0;

close_mem:
    target_close(target);
    return error;
}

void target_close(struct target *target)
{
    close(target->mem);
    free(target->unsafe);
    target->unsafe = NULL;
}

static bool is_unsafe(const struct target *target, uint64_t address)
{
    size_t i;

    for (i = 0; i < target->n_unsafe; i++)
        if (address > target->unsafe[i].begin && address <= target->unsafe[i].end)
            return true;
    return false;
}

static bool is_loaders(const struct target *target, uint64_t address)
{
    return address > target->loader.begin && address <= target->loader.end;
}

/* Whether a call ends right before an address.  Otherwise a pointer to a function, as _start leaves
 * on every stack for the loader, would look like a return address. */
static bool follows_call(const struct target *target, uint64_t address)
{
    unsigned char code[7];

    if (target_read(target, address - sizeof code, code, sizeof code))
        return true;
    if (code[2] == 0xe8) /* call relative */
        return true;
    if (code[1] == 0xff && (code[2] & 0x38) == 0x10) /* call [rip + 4 bytes] and the like */
        return true;
    if (code[0] == 0xff && (code[1] & 0x38) == 0x10)
        return true;
    return (code[5] == 0xff && (code[6] & 0x38) == 0x10) ||
           (code[4] == 0xff && (code[5] & 0x38) == 0x10) ||
           (code[3] == 0xff && (code[4] & 0x38) == 0x10);
}

/* Return the end of the mapping around an address; 0: no mapping. */
static uint64_t mapping_end(pid_t pid, uint64_t address)
{
    char line[LINE];
    struct mapping mapping;
    FILE *maps = open_maps(pid);
    uint64_t end = 0;

    while (maps && !end && next_mapping(maps, line, &mapping))
        if (address >= mapping.range.begin && address < mapping.range.end)
            end = mapping.range.end;
    if (maps)
        fclose(maps);
    return end;
}

static bool is_allocators(const struct target *target, uint64_t address)
{
    size_t i;

    for (i = 0; i < target->n_allocator; i++)
        if (address > target->allocator[i].begin && address <= target->allocator[i].end)
            return true;
    return false;
}

/* Whether libc's return from a signal handler begins at an address: the address lies on the stack
 * of a handler, below the interrupted frames. */
static bool is_signal_return(const struct target *target, uint64_t address)
{
    static const unsigned char code[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};
    unsigned char found[sizeof code];

    return address >= target->libc.begin && address < target->libc.end &&
           !target_read(target, address, found, sizeof found) && !memcmp(found, code, sizeof code);
}

/* A thread waiting in a system call below the loader is in a constructor or a destructor, and may
 * call dlopen.  The loader's own system calls are in the loader's code, and the stack shows a
 * caller of dlopen or dl_iterate_phdr.  A thread in a call outside allocators is in no allocator,
 * unless the thread is in a signal handler: the signal may have interrupted the allocator. */
bool target_is_busy(const struct target *target, uint64_t stack, uint64_t next,
                    enum outside outside)
{
    uint64_t end = mapping_end(target->pid, stack);
    uint64_t words[512];
    bool is_left = false, is_handler = false;
    size_t size, i;

    stack &= ~7ull;
    if (!end || is_unsafe(target, next))
        return true;
    if (end > stack + STACK_BYTES)
        end = stack + STACK_BYTES;
    for (; stack + sizeof *words <= end; stack += size) {
        size = end - stack < sizeof words ? (end - stack) & ~7ull : sizeof words;
        if (target_read(target, stack, words, size))
            return true;
        for (i = 0; i < size / sizeof *words; i++) {
            if (outside == OUTSIDE_ALLOCATOR && is_signal_return(target, words[i]))
                is_handler = true;
            if (!is_unsafe(target, words[i]) ||
                (outside != OUTSIDE_NOTHING && is_loaders(target, words[i])) ||
                !follows_call(target, words[i]))
                continue;
            if (outside != OUTSIDE_ALLOCATOR || !is_allocators(target, words[i]))
                return true;
            is_left = true;
        }
    }
    return is_left && is_handler;
}
