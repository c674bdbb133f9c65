/*
 * Launches nine kernels in a green context's default stream and waits for the first three. Then destroys the green
 * context, and makes a call that waits for the device implicitly. The other kernels go on at SIGUSR1.
 */
#include "program.h"

#include <signal.h>

enum { WAITED_FOR = 3, MORE = 6, KERNEL_NS = 1000000 };

int main(void) {
    sigset_t signals;
    int signal;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);

    CUcontext primary = use_device(), current;
    CUfunction kernel = spin_kernel();
    CUdevResource sms;
    CUdevResourceDesc description;
    CUgreenCtx green;
    CUdeviceptr memory;
    REQUIRE(cuMemAlloc(&memory, MIB));
    REQUIRE(cuDeviceGetDevResource(0, &sms, CU_DEV_RESOURCE_TYPE_SM));
    REQUIRE(cuDevResourceGenerateDesc(&description, &sms, 1));
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    REQUIRE(cuCtxFromGreenCtx(&current, green));
    REQUIRE(cuCtxSetCurrent(current));
    for (int i = 0; i < WAITED_FOR; i++) {
        REQUIRE(spin(kernel, NULL, KERNEL_NS));
        REQUIRE(cuCtxSynchronize());
    }
    for (int i = 0; i < MORE; i++)
        REQUIRE(spin(kernel, NULL, KERNEL_NS));
    REQUIRE(cuCtxSetCurrent(primary));
    REQUIRE(cuGreenCtxDestroy(green));
    printf("destroyed\n");
    fflush(stdout);
    EXPECT(sigwait(&signals, &signal) == 0);
    REQUIRE(cuMemFree(memory));
    printf("done\n");
    return 0;
}
