/*
 * Holds memory, and makes children with the bare system call, which runs no fork handlers. The children end with
 * exit(), which runs the exit handlers of the parent. Argument: number of children.
 */
#include "program.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static pid_t parent;

static void handler(void) {
    /* As in libraries that clean up only in their own process. */
    if (getpid() == parent)
        printf("the parent's handler ran\n");
}

int main(int count, char **arguments) {
    CUdeviceptr memory;
    EXPECT(count == 2);
    use_device();
    CUfunction kernel = spin_kernel();
    REQUIRE(cuMemAlloc(&memory, 8 * MIB));
    parent = getpid();
    EXPECT(atexit(handler) == 0);
    size_t free_before = free_bytes();
    for (int left = atoi(arguments[1]); left; left--) {
        int status;
        pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        EXPECT(child >= 0);
        if (child == 0)
            exit(left % 2);
        EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == left % 2);
    }
    REQUIRE(spin(kernel, NULL, 1000));
    REQUIRE(cuCtxSynchronize());
    printf("the parent holds what it held: %s\n", free_bytes() == free_before ? "yes" : "no");
    REQUIRE(cuMemFree(memory));
    printf("and gives it back: %s\n", free_bytes() == free_before + 8 * MIB ? "yes" : "no");
    return 0;
}
