/*
 * Launches nine kernels and waits for the first three. Then makes a call that waits for the device implicitly; the
 * argument selects the call. The kernels go on at SIGUSR1.
 */
#include "program.h"

#include <signal.h>

enum { WAITED_FOR = 3, MORE = 6, KERNEL_NS = 1000000, CU_LIMIT_STACK_SIZE = 0 };
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1 };
enum { SIDE = 64, ROW = SIDE * 4 };

int main(int count, char **arguments) {
    EXPECT(count == 2);
    const char *way = arguments[1];
    sigset_t signals;
    int signal;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);

    use_device();
    CUfunction kernel = spin_kernel();
    CUstream stream;
    CUdeviceptr memory;
    CUmodule module;
    CUarray array;
    CUmemoryPool pool;
    void *page_locked, *registered = aligned_alloc(4096, MIB);
    CUDA_ARRAY_DESCRIPTOR shape = {SIDE, SIDE, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuMemAlloc(&memory, MIB));
    REQUIRE(cuModuleLoadData(&module, SPIN_PTX));
    REQUIRE(cuArrayCreate(&array, &shape));
    REQUIRE(cuMemPoolCreate(&pool, &properties));
    REQUIRE(cuMemHostAlloc(&page_locked, MIB, 0));
    REQUIRE(cuMemHostRegister(registered, MIB, 0));

    void *pageable = calloc(1, MIB);
    CUdeviceptr host = (uintptr_t)pageable;
    CUDA_MEMCPY2D rows = {
        .source_type = CU_MEMORYTYPE_DEVICE, .source_device = memory, .source_pitch = ROW, .width = ROW,
        .target_type = CU_MEMORYTYPE_HOST, .target_host = pageable, .target_pitch = ROW, .height = SIDE,
    };
    size_t batch_bytes = MIB, batch_first = 0;
    unsigned batch_attributes[6] = {CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

    for (int i = 0; i < WAITED_FOR; i++) {
        REQUIRE(spin(kernel, stream, KERNEL_NS));
        REQUIRE(cuStreamSynchronize(stream));
    }
    for (int i = 0; i < MORE; i++)
        REQUIRE(spin(kernel, stream, KERNEL_NS));
    const struct {
        const char *name;
        CUresult result;
    } calls[] = {
#define CALL(call) {#call, strncmp(way, #call, strlen(way)) ? CUDA_SUCCESS : call},
        CALL(cuMemFree(memory))
        CALL(cuMemFreeHost(page_locked))
        CALL(cuMemHostUnregister(registered))
        CALL(cuModuleUnload(module))
        CALL(cuArrayDestroy(array))
        CALL(cuMemPoolTrimTo(pool, 0))
        CALL(cuMemPoolDestroy(pool))
        CALL(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096))
        CALL(cuMemcpyDtoHAsync(pageable, memory, 4, stream))
        CALL(cuMemcpyHtoDAsync(memory, pageable, MIB, stream))
        CALL(cuMemcpyAsync(host, memory, 4, stream))
        CALL(cuMemcpyAtoHAsync(pageable, array, 0, ROW, stream))
        CALL(cuMemcpy2DAsync(&rows, stream))
        CALL(cuMemcpyBatchAsync(&host, &memory, &batch_bytes, 1, batch_attributes, &batch_first, 1, stream))
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        EXPECT(calls[i].result == CUDA_SUCCESS);
    printf("called\n");
    fflush(stdout);
    EXPECT(sigwait(&signals, &signal) == 0);
    REQUIRE(cuStreamSynchronize(stream));
    printf("done\n");
    return 0;
}
