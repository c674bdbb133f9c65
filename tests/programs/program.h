/* Common parts of the host programs: error checks that end the program, a device, a kernel. */
#ifndef PROGRAM_H
#define PROGRAM_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_subset.h"

#define MIB ((size_t)1 << 20)

/* Ends the program if a call of the driver fails. */
#define REQUIRE(call)                                                                              \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        if (result_ != CUDA_SUCCESS) {                                                             \
            fprintf(stderr, "%s:%d: %s answers %d\n", __FILE__, __LINE__, #call, result_);         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Ends the program if a condition does not hold. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s (errno: %s)\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A kernel whose parameter is its duration in ns. */
__attribute__((unused)) static const char SPIN_PTX[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry spin_ns(.param .u64 duration_ns)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .u64 %t<5>;\n"
    "    ld.param.u64 %t1, [duration_ns];\n"
    "    mov.u64 %t2, %globaltimer;\n"
    "wait:\n"
    "    mov.u64 %t3, %globaltimer;\n"
    "    sub.u64 %t4, %t3, %t2;\n"
    "    setp.lt.u64 %p1, %t4, %t1;\n"
    "    @%p1 bra wait;\n"
    "    ret;\n"
    "}\n";

/* For programs linked to the driver. */
#ifndef NOT_LINKED

/* Opens the first device and makes its primary context current in the calling thread. */
__attribute__((unused)) static CUcontext use_device(void) {
    CUdevice device;
    CUcontext context;
    REQUIRE(cuInit(0));
    REQUIRE(cuDeviceGet(&device, 0));
    REQUIRE(cuDevicePrimaryCtxRetain(&context, device));
    REQUIRE(cuCtxSetCurrent(context));
    return context;
}

/* The spin kernel in the current context. */
__attribute__((unused)) static CUfunction spin_kernel(void) {
    CUmodule module;
    CUfunction function;
    REQUIRE(cuModuleLoadData(&module, SPIN_PTX));
    REQUIRE(cuModuleGetFunction(&function, module, "spin_ns"));
    return function;
}

__attribute__((unused)) static CUresult spin(CUfunction function, CUstream stream, uint64_t duration_ns) {
    void *parameters[] = {&duration_ns};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

/* Free bytes reported for the device or the slice. */
__attribute__((unused)) static size_t free_bytes(void) {
    size_t free, total;
    REQUIRE(cuMemGetInfo(&free, &total));
    return free;
}

#endif
#endif
