/* A library with variables that have the names of driver functions, in which it stores the functions' addresses. */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

__typeof__(cuInit) *init __asm__("cuInit");
__typeof__(cuDeviceTotalMem) *total_mem __asm__("cuDeviceTotalMem_v2");

__attribute__((visibility("default"))) void look(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT(driver != NULL);
    init = (__typeof__(cuInit) *)dlsym(driver, "cuInit");
    total_mem = (__typeof__(cuDeviceTotalMem) *)dlsym(driver, "cuDeviceTotalMem_v2");
    size_t bytes;
    REQUIRE(init(0));
    REQUIRE(total_mem(&bytes, 0));
    printf("%zu bytes\n", bytes);
}
