/*
 * A context ends while another context has work in flight, which waits for the host. Argument: "first" if the process
 * launched in the context that ends, "second" if in the other one. With "second" the work goes on at SIGUSR1. With
 * "first" it goes on by itself; if the context has ended before that, but only after one second, the program prints
 * only that it was delayed.
 */
#include "program.h"

#include <signal.h>
#include <time.h>

static volatile int went_on;

static void go_on_by_itself(void *unused) {
    (void)unused;
    usleep(50000);
    went_on = 1;
}

static void go_on_at_signal(int unused) {
    (void)unused;
    went_on = 1;
}

static void wait_for_signal(void *unused) {
    (void)unused;
    while (!went_on)
        usleep(100);
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void launch_in(CUcontext context, CUstream stream) {
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(spin(spin_kernel(), stream, 1000));
    REQUIRE(cuStreamSynchronize(stream));
}

int main(int count, char **arguments) {
    int ends_first = count > 1 && !strcmp(arguments[1], "first");
    EXPECT(signal(SIGUSR1, go_on_at_signal) != SIG_ERR);
    CUcontext stays = use_device(), ends;
    CUstream stream;
    CUfunction kernel = spin_kernel();
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuCtxCreate(&ends, 0, 0));
    if (ends_first)
        launch_in(ends, NULL);
    launch_in(stays, stream);
    REQUIRE(cuLaunchHostFunc(stream, ends_first ? go_on_by_itself : wait_for_signal, NULL));
    /* More launches than one progress marker covers. */
    for (int i = 0; i < 20; i++)
        REQUIRE(spin(kernel, stream, 1000));
    double start = now_seconds();
    REQUIRE(cuCtxDestroy(ends));
    if (ends_first && !went_on && now_seconds() > start + 1) {
        printf("held up\n");
        fflush(stdout);
        _exit(0);
    }
    if (ends_first)
        printf("the other's work was done: %d\n", went_on);
    else
        printf("ended\n");
    fflush(stdout);
    REQUIRE(cuStreamSynchronize(stream));
    printf("done\n");
    return 0;
}
