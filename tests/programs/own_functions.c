/* A library with functions that have the names of driver functions and load the driver at their first call. */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

static void *in_driver(const char *name) {
    static void *driver;
    if (!driver)
        driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT(driver != NULL);
    return dlsym(driver, name);
}

CUresult cuInit(unsigned flags) {
    return ((__typeof__(cuInit) *)in_driver("cuInit"))(flags);
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    return ((__typeof__(cuDeviceTotalMem) *)in_driver("cuDeviceTotalMem_v2"))(bytes, device);
}

__attribute__((visibility("default"))) void look(void) {
    size_t bytes;
    REQUIRE(cuInit(0));
    REQUIRE(cuDeviceTotalMem(&bytes, 0));
    printf("%zu bytes\n", bytes);
}
