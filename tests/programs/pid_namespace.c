/*
 * Starts a child that is process 1 of its own pid namespace. Both hold memory at the same time, and must be charged
 * separately.
 */
#include "program.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

static int pipe_ends[2];

static int child_main(void *unused) {
    CUdeviceptr memory;
    (void)unused;
    EXPECT(getpid() == 1);
    use_device();
    REQUIRE(cuMemAlloc(&memory, 8 * MIB));
    printf("child: took 8 MiB, free %zu MiB\n", free_bytes() / MIB);
    fflush(stdout);
    EXPECT(write(pipe_ends[1], "x", 1) == 1);
    for (;;)
        pause();
}

int main(void) {
    static _Alignas(16) char stack[256 << 10];
    CUdeviceptr memory;
    char byte;
    int status;
    EXPECT(pipe(pipe_ends) == 0);
    pid_t child = clone(child_main, stack + sizeof stack, CLONE_NEWPID | SIGCHLD, NULL);
    EXPECT(child > 0 && read(pipe_ends[0], &byte, 1) == 1);
    use_device();
    REQUIRE(cuMemAlloc(&memory, 4 * MIB));
    printf("parent: took 4 MiB, free %zu MiB\n", free_bytes() / MIB);
    fflush(stdout);
    EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    return 0;
}
