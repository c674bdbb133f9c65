/*
 * Becomes or starts another program while it holds memory. Argument: fork, vfork, or self. The new program is this one
 * with the argument "fresh".
 */
#include "program.h"

#include <sys/wait.h>

static int fresh(void) {
    CUdeviceptr memory;
    use_device();
    printf("fresh: free %zu MiB\n", free_bytes() / MIB);
    REQUIRE(cuMemAlloc(&memory, 8 * MIB));
    printf("fresh: took 8 MiB\n");
    REQUIRE(cuMemFree(memory));
    return 0;
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    if (!strcmp(arguments[1], "fresh"))
        return fresh();
    char *const command[] = {arguments[0], "fresh", NULL};
    CUdeviceptr memory;
    int status;
    use_device();
    REQUIRE(cuMemAlloc(&memory, 16 * MIB));
    printf("holding 16 MiB: free %zu MiB\n", free_bytes() / MIB);
    fflush(stdout);
    if (!strcmp(arguments[1], "self")) {
        execv(command[0], command);
        EXPECT(!"execv returned");
    }
    pid_t child = !strcmp(arguments[1], "vfork") ? vfork() : fork();
    if (child == 0) {
        execv(command[0], command);
        _exit(127);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("parent: free %zu MiB\n", free_bytes() / MIB);
    return 0;
}
