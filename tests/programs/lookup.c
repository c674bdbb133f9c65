/*
 * A program that looks the driver up itself in one of several ways, and then asks for more memory than its argument. A
 * function found in any way must enforce the limit.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

static void *library;
static void *(*find_symbol)(const char *symbol);

static void *by_dlsym(const char *symbol) {
    return dlsym(library, symbol);
}

static void *by_default(const char *symbol) {
    return dlsym(RTLD_DEFAULT, symbol);
}

static void *by_next(const char *symbol) {
    return dlsym(RTLD_NEXT, symbol);
}

static void find_by_symbol(struct driver *driver) {
#define FIND(name, symbol, version, arguments) EXPECT((driver->name = find_symbol(symbol)) != NULL);
    CUDA_SUBSET(FIND)
#undef FIND
}

/*
 * cuGetProcAddress takes names without versions. Functions such as cuGraphAddKernelNode are distinguished by the CUDA
 * version.
 */
static const char *unversioned(const char *symbol) {
    static char name[64];
    snprintf(name, sizeof name, "%s", symbol);
    char *suffix = strstr(name, "_v");
    if (suffix)
        *suffix = 0;
    return name;
}

static void find_by_get_proc_address_v1(struct driver *driver) {
    get_proc_address_v1 *get = (get_proc_address_v1 *)dlsym(library, "cuGetProcAddress"), *itself;
    EXPECT(get != NULL);
    /* Runtime libraries first look cuGetProcAddress itself up, and go on with the result. */
    REQUIRE(get("cuGetProcAddress", (void **)&itself, 11030, 0));
#define FIND(name, symbol, version, arguments) REQUIRE(itself(unversioned(symbol), (void **)&driver->name, version, 0));
    CUDA_SUBSET(FIND)
#undef FIND
}

static void find_by_get_proc_address_v2(struct driver *driver) {
    get_proc_address_v2 *get = (get_proc_address_v2 *)dlsym(library, "cuGetProcAddress_v2"), *itself;
    EXPECT(get != NULL);
    unsigned status;
    void *nothing = get;
    /* The first look-up of NVIDIA's runtime. */
    printf("an empty name: %d", get("", &nothing, 0, 0, &status));
    printf(", status %u\n", status);
    REQUIRE(get("cuGetProcAddress", (void **)&itself, 12000, 0, &status));
#define FIND(name, symbol, version, arguments)                                                     \
    REQUIRE(itself(unversioned(symbol), (void **)&driver->name, version, 0, NULL));
    CUDA_SUBSET(FIND)
#undef FIND
}

static void find(struct driver *driver, const char *way) {
    int global = !strcmp(way, "default") || !strcmp(way, "next");
    library = dlopen("libcuda.so.1", RTLD_NOW | (global ? RTLD_GLOBAL : 0));
    EXPECT(library != NULL);
    find_symbol = !strcmp(way, "dlsym") ? by_dlsym : !strcmp(way, "next") ? by_next : by_default;
    if (!strcmp(way, "cuGetProcAddress"))
        find_by_get_proc_address_v1(driver);
    else if (!strcmp(way, "cuGetProcAddress_v2"))
        find_by_get_proc_address_v2(driver);
    else
        find_by_symbol(driver);
}

int main(int count, char **arguments) {
    EXPECT(count == 3);
    struct driver cu;
    find(&cu, arguments[1]);
    size_t limit = strtoull(arguments[2], NULL, 0);

    CUcontext context;
    REQUIRE(cu.cuInit(0));
    REQUIRE(cu.cuDevicePrimaryCtxRetain(&context, 0));
    REQUIRE(cu.cuCtxSetCurrent(context));
    CUdeviceptr all, more;
    CUresult result = cu.cuMemAlloc(&all, limit);
    printf("all of it: %d\n", result);
    result = cu.cuMemAlloc(&more, 1);
    printf("and one byte: %d\n", result);
    if (result == CUDA_SUCCESS)
        REQUIRE(cu.cuMemFree(more));
    REQUIRE(cu.cuMemFree(all));

    CUmodule module;
    CUfunction kernel;
    uint64_t duration_ns = 1000;
    void *parameters[] = {&duration_ns};
    REQUIRE(cu.cuModuleLoadData(&module, SPIN_PTX));
    REQUIRE(cu.cuModuleGetFunction(&kernel, module, "spin_ns"));
    REQUIRE(cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    REQUIRE(cu.cuCtxSynchronize());
    printf("a kernel ran\n");
    return 0;
}
