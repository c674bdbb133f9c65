/*
 * Another library that is preloaded with the shim. Like a profiler, it interposes dlsym and an allocation function,
 * counts the calls and forwards them. At the end it prints the counts.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

static int lookups, allocations;

__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*real)(void *, const char *);
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (name[0] == 'c' && name[1] == 'u')
        lookups++;
    return real(handle, name);
}

__attribute__((visibility("default"))) CUresult counted_alloc(CUdeviceptr *address,
                                                              size_t bytes) __asm__("cuMemAlloc_v2");

CUresult counted_alloc(CUdeviceptr *address, size_t bytes) {
    CUresult (*real)(CUdeviceptr *, size_t) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    allocations++;
    EXPECT(real != NULL && real != counted_alloc);
    return real(address, bytes);
}

__attribute__((destructor)) static void tell(void) {
    fprintf(stderr, "other library: %d look-ups, %d allocations\n", lookups, allocations);
}
