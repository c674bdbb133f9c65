/*
 * Prints "ready", waits for SIGUSR1, and then answers requests: kernels for which it waits. They come at random times
 * with a given mean pause. Prints the duration of each. Arguments: number of requests; duration of a kernel in ns; mean
 * pause in µs; seed of the random numbers.
 */
#include "program.h"

#include <signal.h>
#include <time.h>

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int main(int count, char **arguments) {
    EXPECT(count == 5);
    int requests = atoi(arguments[1]);
    uint64_t kernel_ns = strtoull(arguments[2], NULL, 0);
    unsigned mean_us = atoi(arguments[3]);
    srandom(atoi(arguments[4]));
    sigset_t begin;
    int signal;
    sigemptyset(&begin);
    sigaddset(&begin, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &begin, NULL) == 0);
    use_device();
    CUfunction kernel = spin_kernel();
    printf("ready\n");
    fflush(stdout);
    EXPECT(sigwait(&begin, &signal) == 0);
    for (int i = 0; i < requests; i++) {
        /* A pause between 0 and twice the mean. */
        usleep(random() % (2 * mean_us + 1));
        uint64_t start = now_ns();
        REQUIRE(spin(kernel, NULL, kernel_ns));
        REQUIRE(cuCtxSynchronize());
        printf("%llu\n", (unsigned long long)(now_ns() - start));
    }
    return 0;
}
