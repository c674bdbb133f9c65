/*
 * Writes jumps to its own functions over the beginnings of functions that allocate, as UCX does, which must know of all
 * memory. It reaches the functions by copies of what it has overwritten. Then it takes all memory, and one byte more.
 */
#include "program.h"

#include <dlfcn.h>
#include <sys/mman.h>

/* Bytes of the jump that is written: an address into a register, and a jump there. */
#define JUMP_BYTES 12

/* What UCX overwrites. Without the functions that tell where a variable is. */
static const char *const names[] = {
    "cuMemAlloc_v2",   "cuMemAllocManaged", "cuMemAllocPitch_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync",
    "cuMemMap",        "cuMemFree_v2",      "cuMemFreeHost",      "cuMemUnmap",      "cuMemFreeAsync",
};

static CUresult (*next_alloc)(CUdeviceptr *address, size_t bytes);
static CUresult (*next_free)(CUdeviceptr address);
static int allocations, frees;

static CUresult counted_alloc(CUdeviceptr *address, size_t bytes) {
    allocations++;
    return next_alloc(address, bytes);
}

static CUresult counted_free(CUdeviceptr address) {
    frees++;
    return next_free(address);
}

/* The length of the instruction at `code` if it means the same at any address; 0 if it does not or is not known here. */
static size_t movable(const unsigned char *code) {
    if ((code[0] & 0xf8) == 0xb8) /* mov register, number */
        return 5;
    if ((code[0] & 0xf8) == 0x50) /* push */
        return 1;
    if (code[0] == 0x41 && (code[1] & 0xf8) == 0x50) /* push */
        return 2;
    if (!memcmp(code, "\x48\x89\xe5", 3)) /* mov rbp, rsp */
        return 3;
    if (!memcmp(code, "\x48\x83\xec", 3)) /* sub rsp, number */
        return 4;
    if (!memcmp(code, "\x48\x81\xec", 3)) /* sub rsp, number */
        return 7;
    return 0;
}

/* The bytes to copy from the beginning of the function `name`. */
static size_t beginning(const char *name, const unsigned char *function) {
    size_t bytes = 0;
    while (bytes < JUMP_BYTES) {
        size_t instruction = movable(function + bytes);
        if (!instruction) {
            printf("cannot copy the beginning of %s\n", name);
            exit(1);
        }
        bytes += instruction;
    }
    return bytes;
}

/* Lets `function` begin with a jump to `instead`. Returns a function that does what it did. */
static void *overwrite(const char *name, unsigned char *function, void *instead) {
    size_t bytes = beginning(name, function);
    unsigned char *copy = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(copy != MAP_FAILED);
    void *rest = function + bytes;
    memcpy(copy, function, bytes);
    memcpy(copy + bytes, "\xff\x25\0\0\0\0", 6); /* jmp to the address behind it */
    memcpy(copy + bytes + 6, &rest, sizeof rest);
    EXPECT(mprotect(copy, 4096, PROT_READ | PROT_EXEC) == 0);

    char *pages = (char *)((uintptr_t)function & ~(uintptr_t)4095);
    EXPECT(mprotect(pages, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    memcpy(function, "\x48\xb8", 2); /* mov rax, the address */
    memcpy(function + 2, &instead, sizeof instead);
    memcpy(function + 10, "\xff\xe0", 2); /* jmp rax */
    EXPECT(mprotect(pages, 8192, PROT_READ | PROT_EXEC) == 0);
    return copy;
}

int main(void) {
    use_device();
    for (size_t name = 0; name < sizeof names / sizeof *names; name++)
        beginning(names[name], dlsym(RTLD_DEFAULT, names[name]));
    next_alloc = overwrite("cuMemAlloc_v2", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), counted_alloc);
    next_free = overwrite("cuMemFree_v2", dlsym(RTLD_DEFAULT, "cuMemFree_v2"), counted_free);

    CUdeviceptr all, more;
    size_t free = free_bytes();
    REQUIRE(cuMemAlloc(&all, free));
    printf("one byte more: %d", cuMemAlloc(&more, 1));
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *function;
    EXPECT(library != NULL);
    __typeof__(cuMemAlloc) *alloc = dlsym(library, "cuMemAlloc_v2");
    printf(", on a handle: %d", alloc(&more, 1));
    get_proc_address_v2 *look_up = dlsym(library, "cuGetProcAddress_v2");
    REQUIRE(look_up("cuMemAlloc", &function, 12000, 0, NULL));
    printf(", by look-up: %d\n", ((__typeof__(cuMemAlloc) *)function)(&more, 1));
    REQUIRE(cuMemFree(all));
    EXPECT(free_bytes() == free);
    printf("%d allocations and %d frees seen\n", allocations, frees);
    return 0;
}
