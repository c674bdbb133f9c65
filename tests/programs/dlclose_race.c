/*
 * One thread uses the driver through its own handle, while another thread opens and closes the driver, looks functions
 * up in every way and calls them.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>
#include <pthread.h>

static CUcontext context;
static volatile int stop, rounds;

static void *open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT(library != NULL);
    return library;
}

static void *work(void *unused) {
    void *library = open_driver();
    __typeof__(cuCtxSetCurrent) *set_current = dlsym(library, "cuCtxSetCurrent");
    __typeof__(cuMemAlloc) *alloc = dlsym(library, "cuMemAlloc_v2");
    __typeof__(cuMemFree) *give_back = dlsym(library, "cuMemFree_v2");
    EXPECT(set_current && alloc && give_back);
    REQUIRE(set_current(context));
    while (!stop) {
        CUdeviceptr memory;
        REQUIRE(alloc(&memory, 4096));
        REQUIRE(give_back(memory));
        rounds++;
    }
    EXPECT(dlclose(library) == 0);
    return unused;
}

int main(void) {
    void *library = open_driver();
    __typeof__(cuInit) *init = dlsym(library, "cuInit");
    __typeof__(cuDevicePrimaryCtxRetain) *retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    EXPECT(init && retain);
    REQUIRE(init(0));
    REQUIRE(retain(&context, 0));
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, work, NULL) == 0);
    while (!rounds)
        usleep(100);
    int refused = 0;
    for (int round = 0; round < 500; round++) {
        void *another = open_driver();
        __typeof__(cuCtxSetCurrent) *set_current = dlsym(another, "cuCtxSetCurrent");
        __typeof__(cuMemAlloc) *alloc = dlsym(another, "cuMemAlloc_v2");
        CUdeviceptr memory;
        EXPECT(set_current && alloc && set_current(context) == CUDA_SUCCESS);
        refused += alloc(&memory, (size_t)1 << 50) == CUDA_ERROR_OUT_OF_MEMORY;
        EXPECT(dlclose(another) == 0);
    }
    stop = 1;
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(dlclose(library) == 0);
    printf("500 times opened and closed, %d times refused\n", refused);
    return 0;
}
