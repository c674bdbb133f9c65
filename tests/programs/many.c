/*
 * Starts a number of processes, a given number at a time. Each allocates memory, launches a kernel of 1 ms, waits for
 * it, and holds its memory until all processes that run with it have done so too. Then does the same itself.
 */
#include <poll.h>
#include <sys/wait.h>

#include "program.h"

static void work(void) {
    CUdeviceptr memory;
    use_device();
    CUfunction kernel = spin_kernel();
    REQUIRE(cuMemAlloc(&memory, 65536));
    REQUIRE(spin(kernel, NULL, 1000000));
    REQUIRE(cuCtxSynchronize());
}

static void run_at_once(long count) {
    int done[2], end[2];
    char byte;
    EXPECT(pipe(done) == 0 && pipe(end) == 0);
    for (long i = 0; i < count; i++) {
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            close(end[1]);
            work();
            EXPECT(write(done[1], "", 1) == 1);
            EXPECT(read(end[0], &byte, 1) == 0);
            exit(0);
        }
    }
    for (long i = 0; i < count;) {
        struct pollfd ready = {.fd = done[0], .events = POLLIN};
        if (poll(&ready, 1, 100) == 1) {
            EXPECT(read(done[0], &byte, 1) == 1);
            i++;
        }
        /* No process ends before all have done their work. */
        EXPECT(waitpid(-1, NULL, WNOHANG) == 0);
    }
    close(end[1]);
    for (long i = 0; i < count; i++) {
        int status;
        EXPECT(wait(&status) > 0 && status == 0);
    }
    close(done[0]), close(done[1]), close(end[0]);
}

int main(int count, char **arguments) {
    EXPECT(count == 3);
    long left = atol(arguments[1]), at_once = atol(arguments[2]);
    for (; left > 0; left -= at_once)
        run_at_once(left < at_once ? left : at_once);
    work();
    printf("all have done their work\n");
    return 0;
}
