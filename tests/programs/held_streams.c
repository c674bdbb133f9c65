/* Launches a kernel into each of 24 streams, which a host function holds until SIGUSR1. */
#include "program.h"

#include <signal.h>

enum { STREAMS = 24 };

static volatile sig_atomic_t went_on;

static void go_on(int signal) {
    (void)signal;
    went_on = 1;
}

static void hold_up(void *unused) {
    (void)unused;
    while (!went_on)
        usleep(100);
}

int main(void) {
    CUstream streams[STREAMS];
    CUevent held_up;
    EXPECT(signal(SIGUSR1, go_on) != SIG_ERR);
    use_device();
    CUfunction kernel = spin_kernel();
    CUstream first;
    REQUIRE(cuEventCreate(&held_up, 0));
    REQUIRE(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuLaunchHostFunc(first, hold_up, NULL));
    REQUIRE(cuEventRecord(held_up, first));
    for (int i = 0; i < STREAMS; i++) {
        REQUIRE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        REQUIRE(cuStreamWaitEvent(streams[i], held_up, 0));
        REQUIRE(spin(kernel, streams[i], 1000));
    }
    printf("launched\n");
    fflush(stdout);
    REQUIRE(cuCtxSynchronize());
    printf("done\n");
    return 0;
}
