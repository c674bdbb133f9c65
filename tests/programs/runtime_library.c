/*
 * Linked to NVIDIA's runtime library. Prints each look-up of a driver function that the library makes at its start, and
 * what it got. Then uses the functions that it got: takes all memory, and one byte more.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

/* The functions of the runtime library that the program calls, declared by hand from its public documentation. */
int cudaGetDeviceCount(int *count);
int cudaMalloc(void **address, size_t bytes);
int cudaMemGetInfo(size_t *free, size_t *total);
const char *cudaGetErrorName(int error);

/* The functions that the library got: by their unversioned names, the newest version of each. */
static struct got {
    char name[64];
    uint64_t flags;
    int version;
    void *address;
} got[2048];
static size_t count;

static get_proc_address_v1 *real_v1;
static get_proc_address_v2 *real_v2;

/* Prints a look-up: "cuMemAlloc 3020 0: 0 0 cuMemAlloc_v2 libcuda.so.1". */
static void print(const char *name, int version, uint64_t flags, CUresult result, unsigned status, void *address) {
    Dl_info found;
    /* Also where the driver's look-up gives addresses outside of its library. */
    if (!address || !dladdr(address, &found))
        found = (Dl_info){.dli_fname = "/-"};
    printf("%s %d %d: %d %u %s %s\n", name, version, (int)flags, result, status, found.dli_sname ? found.dli_sname : "-",
           strrchr(found.dli_fname, '/') + 1);
}

static get_proc_address_v1 recording_v1;
static get_proc_address_v2 recording_v2;

/* What the library gets for `address`: functions that look others up are replaced by those that print. */
static void *instead(const char *name, int version, void *address) {
    if (!address || strcmp(name, "cuGetProcAddress"))
        return address;
    if (version < 12000) {
        real_v1 = address;
        return recording_v1;
    }
    real_v2 = address;
    return recording_v2;
}

/* Prints and remembers the answer to a look-up, and makes it the library's. */
static void record(const char *name, int version, uint64_t flags, CUresult result, unsigned status, void **address) {
    print(name, version, flags, result, status, *address);
    EXPECT(count < sizeof got / sizeof *got && strlen(name) < sizeof got->name);
    struct got *own = &got[count++];
    *own = (struct got){.flags = flags, .version = version, .address = *address};
    strcpy(own->name, name);
    *address = instead(name, version, *address);
}

static CUresult recording_v1(const char *name, void **address, int version, uint64_t flags) {
    CUresult result = real_v1(name, address, version, flags);
    record(name, version, flags, result, 0, address);
    return result;
}

static CUresult recording_v2(const char *name, void **address, int version, uint64_t flags, unsigned *status) {
    unsigned own_status;
    CUresult result = real_v2(name, address, version, flags, status ? status : &own_status);
    record(name, version, flags, result, status ? *status : own_status, address);
    return result;
}

/* The library's look-ups by the C library come here first, then to the shim if there is one. */
__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*real)(void *, const char *);
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *address = real(handle, name);
    if (strncmp(name, "cu", 2))
        return address;
    print(name, 0, 0, 0, 0, address);
    if (!strcmp(name, "cuGetProcAddress_v2"))
        return instead("cuGetProcAddress", 12000, address);
    return instead(name, 0, address);
}

/* The newest version of the function `name` that the library got with these flags. */
static void *function(const char *name, uint64_t flags) {
    struct got *newest = NULL;
    for (struct got *one = got; one < got + count; one++)
        if (one->address && one->flags == flags && !strcmp(one->name, name) && (!newest || newest->version < one->version))
            newest = one;
    EXPECT(newest != NULL);
    return newest->address;
}

#define GOT(name) ((__typeof__(name) *)function(#name, 0))
#define GOT_PER_THREAD(name) ((__typeof__(name) *)function(#name, 2))

/* Uses the driver by the library's own functions. */
static void use(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr all, more;
    size_t free, total, left;
    REQUIRE(GOT(cuInit)(0));
    REQUIRE(GOT(cuDeviceGet)(&device, 0));
    REQUIRE(GOT(cuDevicePrimaryCtxRetain)(&context, device));
    REQUIRE(GOT(cuCtxSetCurrent)(context));
    REQUIRE(GOT(cuMemGetInfo)(&free, &total));
    printf("free %zu of %zu\n", free, total);

    REQUIRE(GOT(cuMemAlloc)(&all, free));
    REQUIRE(GOT(cuMemGetInfo)(&left, &total));
    printf("left %zu, one byte more: %d", left, GOT(cuMemAlloc)(&more, 1));
    printf(", managed: %d", GOT(cuMemAllocManaged)(&more, 1, CU_MEM_ATTACH_GLOBAL));
    printf(", in order of a stream: %d", GOT(cuMemAllocAsync)(&more, 1, NULL));
    printf(" and %d\n", GOT_PER_THREAD(cuMemAllocAsync)(&more, 1, NULL));
    REQUIRE(GOT(cuMemFree)(all));

    REQUIRE(GOT(cuModuleLoadData)(&module, SPIN_PTX));
    REQUIRE(GOT(cuModuleGetFunction)(&kernel, module, "spin_ns"));
    uint64_t duration_ns = 1000;
    void *parameters[] = {&duration_ns};
    REQUIRE(GOT(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    REQUIRE(GOT_PER_THREAD(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    REQUIRE(GOT(cuStreamSynchronize)(NULL));
    REQUIRE(GOT_PER_THREAD(cuStreamSynchronize)(NULL));
    REQUIRE(GOT(cuMemGetInfo)(&left, &total));
    EXPECT(left == free);
    printf("two kernels ran\n");
}

int main(void) {
    int devices;
    size_t free, total;
    void *memory;
    /* The library lets go of a driver that it does not want. Its functions are to stay. */
    EXPECT(dlopen("libcuda.so.1", RTLD_NOW) != NULL);
    const char *counted = cudaGetErrorName(cudaGetDeviceCount(&devices));
    const char *allocated = cudaGetErrorName(cudaMalloc(&memory, 1));
    const char *informed = cudaGetErrorName(cudaMemGetInfo(&free, &total));
    printf("device count %s, malloc %s, info %s\n", counted, allocated, informed);
    use();
    return 0;
}
