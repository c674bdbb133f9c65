/* Repeatedly cancels threads that allocate memory, launch and free. */
#include "program.h"

#include <pthread.h>

enum { ROUNDS = 20, THREADS = 8 };

static CUcontext context;
static CUfunction kernel;
static pthread_barrier_t running;

static void give_back(void *memory) {
    REQUIRE(cuMemFree(*(CUdeviceptr *)memory));
}

static void *work(void *unused) {
    REQUIRE(cuCtxSetCurrent(context));
    for (int round = 0;; round++) {
        CUdeviceptr memory;
        REQUIRE(cuMemAlloc(&memory, 4096));
        pthread_cleanup_push(give_back, &memory);
        REQUIRE(spin(kernel, NULL, 1000));
        if (round == 1)
            pthread_barrier_wait(&running);
        pthread_testcancel();
        pthread_cleanup_pop(1);
    }
    return unused;
}

int main(void) {
    pthread_t threads[THREADS];
    void *result;
    int cancelled = 0;
    context = use_device();
    kernel = spin_kernel();
    size_t before = free_bytes();
    pthread_barrier_init(&running, NULL, THREADS + 1);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < THREADS; i++)
            EXPECT(pthread_create(&threads[i], NULL, work, NULL) == 0);
        pthread_barrier_wait(&running);
        for (int i = 0; i < THREADS; i++)
            EXPECT(pthread_cancel(threads[i]) == 0);
        for (int i = 0; i < THREADS; i++) {
            EXPECT(pthread_join(threads[i], &result) == 0);
            cancelled += result == PTHREAD_CANCELED;
        }
    }
    REQUIRE(cuCtxSynchronize());
    printf("%d threads cancelled, all given back: %s\n", cancelled, free_bytes() == before ? "yes" : "no");
    return 0;
}
