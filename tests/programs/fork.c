/*
 * Forks before or after it starts to use CUDA. Argument: before, after, or storm. Parent and children must be charged
 * separately.
 */
#include "program.h"

#include <sys/wait.h>

static void work(const char *who) {
    CUdeviceptr memory;
    use_device();
    REQUIRE(cuMemAlloc(&memory, 8 * MIB));
    REQUIRE(spin(spin_kernel(), NULL, 10000));
    REQUIRE(cuCtxSynchronize());
    printf("%s: took 8 MiB, ran a kernel\n", who);
    REQUIRE(cuMemFree(memory));
}

static void await(pid_t child) {
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The driver does not work in a child of a process that has initialised it. It must report that and not hang. */
static int child_after_init(void) {
    CUdeviceptr memory;
    printf("child: cuInit %d, cuMemAlloc %s\n", cuInit(0), cuMemAlloc(&memory, 4096) ? "refused" : "granted");
    fflush(stdout);
    _exit(0);
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(arguments[1], "before")) {
        pid_t child = fork();
        if (child == 0) {
            work("child");
            return 0;
        }
        await(child);
        work("parent");
    } else if (!strcmp(arguments[1], "after")) {
        CUdeviceptr memory;
        use_device();
        size_t free_before = free_bytes();
        REQUIRE(cuMemAlloc(&memory, 8 * MIB));
        size_t free_with = free_bytes();
        pid_t child = fork();
        if (child == 0)
            child_after_init();
        await(child);
        printf("parent: still holds it: %s\n", free_bytes() == free_with ? "yes" : "no");
        REQUIRE(cuMemFree(memory));
        printf("parent: gave it back: %s\n", free_bytes() == free_before ? "yes" : "no");
        work("parent");
    } else {
        /* Children that end without using CUDA, by every kind of exit, must change nothing for the parent. */
        CUdeviceptr memory;
        use_device();
        REQUIRE(cuMemAlloc(&memory, 8 * MIB));
        size_t free_with = free_bytes();
        for (int i = 0; i < 50; i++) {
            pid_t child = fork();
            if (child == 0) {
                if (i % 3 == 0)
                    _exit(0);
                if (i % 3 == 1)
                    exit(0);
                return 0;
            }
            await(child);
        }
        printf("parent: still holds it: %s\n", free_bytes() == free_with ? "yes" : "no");
    }
    return 0;
}
