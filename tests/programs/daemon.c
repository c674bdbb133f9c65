/* Becomes a daemon by forking twice, and then uses CUDA. The first process waits only for the daemon's output. */
#include "program.h"

#include <sys/wait.h>

static void serve(void) {
    CUdeviceptr memory;
    use_device();
    REQUIRE(cuMemAlloc(&memory, 8 * MIB));
    printf("daemon: took 8 MiB, one byte more than is left: %d\n", cuMemAlloc(&memory, free_bytes() + 1));
}

int main(void) {
    int pipe_ends[2], status;
    char byte;
    EXPECT(pipe(pipe_ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        EXPECT(setsid() > 0);
        if (fork() != 0)
            _exit(0);
        serve();
        return 0;
    }
    EXPECT(waitpid(child, &status, 0) == child);
    close(pipe_ends[1]);
    /* The pipe ends when the daemon ends. */
    EXPECT(read(pipe_ends[0], &byte, 1) == 0);
    printf("gone\n");
    return 0;
}
