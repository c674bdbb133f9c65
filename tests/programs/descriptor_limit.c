/*
 * Uses CUDA with each possible limit on descriptors, in one child for each. With some limits the driver gets all
 * descriptors that it needs, and none are left for other libraries. Then raises the limit and goes on. Prints whether
 * it ever got more memory than the argument.
 */
#include "program.h"

#include <sys/resource.h>
#include <sys/wait.h>

enum { NO_DRIVER = 10, WITHIN = 11, REFUSED_FIRST = 12, BEYOND = 13, LOST = 14 };

/* Whether an allocation of one byte more than all memory is granted. */
static int gets_more(size_t all) {
    CUdeviceptr memory;
    return cuMemAlloc(&memory, all + 1) == CUDA_SUCCESS;
}

static int child(rlim_t limit, size_t all) {
    struct rlimit before, lowered;
    EXPECT(getrlimit(RLIMIT_NOFILE, &before) == 0);
    lowered = before;
    lowered.rlim_cur = limit;
    EXPECT(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
    CUcontext context;
    CUdeviceptr memory;
    if (cuInit(0) != CUDA_SUCCESS)
        return NO_DRIVER;
    CUresult first = cuDevicePrimaryCtxRetain(&context, 0);
    if (first == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS && gets_more(all))
        return BEYOND;
    EXPECT(setrlimit(RLIMIT_NOFILE, &before) == 0);
    if (first != CUDA_SUCCESS) {
        REQUIRE(cuDevicePrimaryCtxRetain(&context, 0));
        REQUIRE(cuCtxSetCurrent(context));
    }
    if (gets_more(all))
        return BEYOND;
    if (cuMemAlloc(&memory, all) != CUDA_SUCCESS)
        return LOST;
    /* Without this, no other process would give the memory back at this process's end. */
    REQUIRE(cuMemFree(memory));
    return first == CUDA_SUCCESS ? WITHIN : REFUSED_FIRST;
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    size_t all = strtoull(arguments[1], NULL, 10);
    int ends[256] = {0};
    for (rlim_t limit = 3; limit < 64; limit++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(child(limit, all));
        int status;
        EXPECT(waitpid(pid, &status, 0) == pid);
        EXPECT(WIFEXITED(status));
        ends[WEXITSTATUS(status)]++;
    }
    printf("at once within it: %s\n", ends[WITHIN] ? "some" : "none");
    printf("refused, and within it later: %s\n", ends[REFUSED_FIRST] ? "some" : "none");
    printf("beyond it: %s\n", ends[BEYOND] ? "some" : "none");
    printf("without what is theirs: %s\n", ends[LOST] ? "some" : "none");
    printf("other ends: %d\n", 61 - ends[WITHIN] - ends[REFUSED_FIRST] - ends[BEYOND] - ends[LOST] - ends[NO_DRIVER]);
    return 0;
}
