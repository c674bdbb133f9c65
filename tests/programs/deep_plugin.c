/*
 * A plugin that finds the driver in three ways: by linking, by a table of function pointers, and by its own look-up.
 * Opened with RTLD_DEEPBIND, it finds the driver and the C library's dlsym before any preloaded library.
 */
#include "program.h"

#include <dlfcn.h>

typedef CUresult allocate(CUdeviceptr *address, size_t bytes);

static allocate *const table[] = {cuMemAlloc};

/* Allocates `bytes`, which is the whole limit, and then one byte more. */
static void take_all(const char *way, allocate *allocate, size_t bytes) {
    CUdeviceptr all, more;
    REQUIRE(allocate(&all, bytes));
    CUresult result = allocate(&more, 1);
    printf("%s: one byte more: %d\n", way, result);
    if (result == CUDA_SUCCESS)
        REQUIRE(cuMemFree(more));
    REQUIRE(cuMemFree(all));
}

__attribute__((visibility("default"))) void take(size_t bytes) {
    use_device();
    take_all("by a call", cuMemAlloc, bytes);
    take_all("by a pointer", table[0], bytes);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != NULL);
    take_all("by a look-up", (allocate *)dlsym(library, "cuMemAlloc_v2"), bytes);
    take_all("by a look-up of all", (allocate *)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), bytes);
}

/* A program that defines this gets the plugin's function here, and need not look it up. */
__attribute__((weak)) void register_plugin(void (*take)(size_t bytes));

__attribute__((constructor)) static void introduce(void) {
    if (register_plugin)
        register_plugin(take);
}

__attribute__((visibility("default"))) CUresult take_one(size_t bytes) {
    CUdeviceptr address;
    use_device();
    CUresult result = cuMemAlloc(&address, bytes);
    if (result == CUDA_SUCCESS)
        REQUIRE(cuMemFree(address));
    return result;
}
