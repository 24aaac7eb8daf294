/* Memory of another process, in which `penstock attach` looks for functions: any bytes.  The owner
 * of that process may be hostile, and whoever attaches may be root. */
#include "driver.h"

#include <sys/mman.h>

#include "../../../native/attach/target.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct target target = {.mem = -1};
    struct symbols symbols;

    if (target.mem < 0)
        target.mem = memfd_create("elf", MFD_CLOEXEC);
    if (ftruncate(target.mem, 0) || pwrite(target.mem, data, size, 0) != (ssize_t)size)
        return 0;
    if (!read_symbols(&target, 0, &symbols)) {
        find_function(&target, &symbols, "dlopen");
        find_function(&target, &symbols, "malloc");
        find_function(&target, &symbols, "one");
    }
    use_object(&target, 0, true);
    target.libc = (struct range){0, size};
    find_gadget(&target);
    free(target.unsafe);
    target = (struct target){.mem = target.mem};
    return 0;
}

#ifdef PENSTOCK_MUTATE
/* An object with one symbol, where the loader would have put it. */
size_t seed_input(uint8_t *data, size_t room)
{
    struct {
        Elf64_Ehdr header;
        Elf64_Phdr segment;
        Elf64_Dyn dynamic[6];
        Elf64_Sym symbols[2];
        uint32_t hash[4];
        uint64_t filter;
        uint32_t bucket, chain;
        char names[16];
        uint8_t code[4096];
    } object = {0};
    const size_t names = offsetof(typeof(object), names);

    if (sizeof object > room)
        return 0;
    memcpy(object.header.e_ident, ELFMAG, SELFMAG);
    object.header.e_ident[EI_CLASS] = ELFCLASS64;
    object.header.e_phoff = offsetof(typeof(object), segment);
    object.header.e_phnum = 1;
    object.segment.p_type = PT_DYNAMIC;
    object.segment.p_vaddr = offsetof(typeof(object), dynamic);
    object.segment.p_memsz = sizeof object.dynamic;
    object.dynamic[0] = (Elf64_Dyn){DT_SYMTAB, {offsetof(typeof(object), symbols)}};
    object.dynamic[1] = (Elf64_Dyn){DT_STRTAB, {names}};
    object.dynamic[2] = (Elf64_Dyn){DT_STRSZ, {sizeof object.names}};
    object.dynamic[3] = (Elf64_Dyn){DT_GNU_HASH, {offsetof(typeof(object), hash)}};
    object.hash[0] = object.hash[1] = object.hash[2] = 1;
    object.bucket = 1;
    object.chain = gnu_hash("dlopen") | 1;
    object.symbols[1].st_name = 1;
    object.symbols[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    object.symbols[1].st_shndx = 1;
    object.symbols[1].st_value = offsetof(typeof(object), code);
    object.symbols[1].st_size = 16;
    strcpy(object.names + 1, "dlopen");
    object.code[99] = 0x0f;
    object.code[100] = 0x05;
    memcpy(data, &object, sizeof object);
    return sizeof object;
}
#endif
