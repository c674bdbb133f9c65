/*
 * A program that interposes dlsym itself and forwards to the C library's. It must see the same look-ups as without a
 * shim, and its own look-ups must not recurse.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

static int seen;

__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*real)(void *, const char *);
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    seen++;
    return real(handle, name);
}

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != NULL);
    __typeof__(cuInit) *init = dlsym(library, "cuInit");
    __typeof__(cuDeviceTotalMem) *total_mem = dlsym(library, "cuDeviceTotalMem_v2");
    EXPECT(init && total_mem && !dlsym(library, "cuFromTheFuture"));
    size_t bytes;
    REQUIRE(init(0));
    REQUIRE(total_mem(&bytes, 0));
    printf("%d look-ups, %zu bytes\n", seen, bytes);
    return 0;
}
