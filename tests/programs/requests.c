/*
 * Says "ready", waits for the signal USR1, and then answers requests, each a kernel that is waited for. They come at random with a
 * mean pause between them; of each it says how long it took. Arguments: requests; nanoseconds of a kernel; mean pause in microseconds; where the random numbers begin.
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
        /* Between nothing and twice the mean. */
        usleep(random() % (2 * mean_us + 1));
        uint64_t start = now_ns();
        REQUIRE(spin(kernel, NULL, kernel_ns));
        REQUIRE(cuCtxSynchronize());
        printf("%llu\n", (unsigned long long)(now_ns() - start));
    }
    return 0;
}
