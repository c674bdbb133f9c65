/*
 * Forks repeatedly while its threads allocate memory, free it and launch. The driver does not work in the children: it
 * must report that, and neither the children nor the parent may hang.
 */
#include "program.h"

#include <pthread.h>
#include <sys/wait.h>

enum { THREADS = 4, CHILDREN = 100 };

static CUcontext context;
static CUfunction kernel;
static volatile int stop;

static void *work(void *unused) {
    REQUIRE(cuCtxSetCurrent(context));
    while (!stop) {
        CUdeviceptr memory;
        REQUIRE(cuMemAlloc(&memory, 4096));
        REQUIRE(spin(kernel, NULL, 1000));
        REQUIRE(cuMemFree(memory));
    }
    return unused;
}

int main(void) {
    pthread_t threads[THREADS];
    int refused = 0;
    context = use_device();
    kernel = spin_kernel();
    size_t before = free_bytes();
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, work, NULL) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        CUdeviceptr memory;
        int status;
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0)
            _exit(cuMemAlloc(&memory, 4096) == CUDA_SUCCESS ? 1 : 0);
        EXPECT(waitpid(child, &status, 0) == child);
        refused += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    REQUIRE(cuCtxSynchronize());
    printf("%d children, %d refused; all given back: %s\n", CHILDREN, refused, free_bytes() == before ? "yes" : "no");
    return 0;
}
