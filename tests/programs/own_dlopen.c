/*
 * A program that interposes dlopen itself and forwards to the C library's, as tracers and sanitizers do. It must see
 * the same calls as without a shim.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

static int seen;

__attribute__((visibility("default"))) void *dlopen(const char *path, int flags) {
    static void *(*real)(const char *, int);
    if (!real)
        real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    EXPECT(real != NULL && real != dlopen);
    seen++;
    return real(path, flags);
}

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != NULL);
    void *(*found)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_DEFAULT, "dlopen");
    EXPECT(found == dlopen && found("libcuda.so.1", RTLD_NOW) == library);
    __typeof__(cuInit) *init = dlsym(library, "cuInit");
    __typeof__(cuDeviceTotalMem) *total_mem = dlsym(library, "cuDeviceTotalMem_v2");
    size_t bytes;
    REQUIRE(init(0));
    REQUIRE(total_mem(&bytes, 0));
    printf("%d openings, %zu bytes\n", seen, bytes);
    return 0;
}
