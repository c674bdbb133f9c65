/*
 * A program that, like tracers, interposes functions to which compilers emit calls, and looks the C library's up at the
 * first call.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

#define INTERPOSE(result, name, parameters, arguments)                                             \
    __attribute__((visibility("default"))) result name parameters {                                \
        static result(*real) parameters;                                                           \
        if (!real)                                                                                 \
            real = (result(*) parameters)dlsym(RTLD_NEXT, #name);                                  \
        return real arguments;                                                                     \
    }

INTERPOSE(size_t, strlen, (const char *text), (text))
INTERPOSE(int, memcmp, (const void *one, const void *other, size_t bytes), (one, other, bytes))
INTERPOSE(int, bcmp, (const void *one, const void *other, size_t bytes), (one, other, bytes))
INTERPOSE(void *, memset, (void *to, int byte, size_t bytes), (to, byte, bytes))
INTERPOSE(void *, memcpy, (void *restrict to, const void *restrict from, size_t bytes), (to, from, bytes))
INTERPOSE(void *, memmove, (void *to, const void *from, size_t bytes), (to, from, bytes))

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != NULL);
    __typeof__(cuInit) *init = (__typeof__(cuInit) *)dlsym(library, "cuInit");
    __typeof__(cuDeviceTotalMem) *total_mem = (__typeof__(cuDeviceTotalMem) *)dlsym(library, "cuDeviceTotalMem_v2");
    EXPECT(init && total_mem);
    size_t bytes;
    REQUIRE(init(0));
    REQUIRE(total_mem(&bytes, 0));
    printf("%zu bytes\n", bytes);
    return 0;
}
