/*
 * Overwrites its own reference to a driver function with its own function, as tracers do that hook one library at a
 * time. Then opens a library with RTLD_DEEPBIND: the reference must stay as it was written. Argument: the library.
 */
#include "program.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>

static CUresult (*next)(CUdeviceptr *, size_t);
static int seen;

static CUresult counted(CUdeviceptr *address, size_t bytes) {
    seen++;
    return next(address, bytes);
}

/* The slot through which the program's calls of `name` go. */
static void **slot_of(const char *name) {
    ElfW(Addr) base = _r_debug.r_map->l_addr;
    const char *strings = NULL;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Rela) *tables[2] = {NULL, NULL};
    size_t counts[2] = {0, 0};
    for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++) {
        void *address = (void *)entry->d_un.d_ptr;
        switch (entry->d_tag) {
        case DT_STRTAB: strings = address; break;
        case DT_SYMTAB: symbols = address; break;
        case DT_RELA: tables[0] = address; break;
        case DT_RELASZ: counts[0] = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
        case DT_JMPREL: tables[1] = address; break;
        case DT_PLTRELSZ: counts[1] = entry->d_un.d_val / sizeof(ElfW(Rela)); break;
        }
    }
    for (int table = 0; table < 2; table++)
        for (size_t number = 0; number < counts[table]; number++) {
            const ElfW(Rela) *relocation = &tables[table][number];
            if (!strcmp(strings + symbols[ELF64_R_SYM(relocation->r_info)].st_name, name))
                return (void **)(base + relocation->r_offset);
        }
    return NULL;
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    CUdeviceptr address;
    use_device();
    REQUIRE(cuMemAlloc(&address, MIB));
    void **slot = slot_of("cuMemAlloc_v2");
    EXPECT(slot != NULL);
    char *page = (char *)((uintptr_t)slot & ~(uintptr_t)4095);
    EXPECT(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0);
    next = *(CUresult(**)(CUdeviceptr *, size_t))slot;
    *slot = (void *)counted;
    REQUIRE(cuMemAlloc(&address, MIB));
    void *plugin = dlopen(arguments[1], RTLD_NOW | RTLD_DEEPBIND);
    EXPECT(plugin != NULL && dlsym(plugin, "take") != NULL);
    printf("too much: %d\n", cuMemAlloc(&address, (size_t)1 << 50));
    printf("seen: %d\n", seen);
    return 0;
}
