/*
 * Four threads without a context try to allocate memory, then use the program's context and allocate all that they can
 * get.
 */
#include "program.h"

#include <pthread.h>

#define THREADS 4
#define PIECE (256 << 10)

static CUcontext context;
static int granted[THREADS];
static CUresult without_context[THREADS];
static pthread_barrier_t filled;

static void *take(void *argument) {
    int number = (int)(intptr_t)argument;
    static CUdeviceptr pieces[THREADS][4096];
    CUdeviceptr address;
    without_context[number] = cuMemAlloc(&address, PIECE);
    REQUIRE(cuCtxSetCurrent(context));
    while (granted[number] < 4096 && cuMemAlloc(&pieces[number][granted[number]], PIECE) == CUDA_SUCCESS)
        granted[number]++;
    pthread_barrier_wait(&filled);
    for (int i = 0; i < granted[number]; i++)
        REQUIRE(cuMemFree(pieces[number][i]));
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    int sum = 0;
    context = use_device();
    size_t before = free_bytes();
    pthread_barrier_init(&filled, NULL, THREADS);
    for (intptr_t i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, take, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
        printf("thread %d without a context: %d\n", i, without_context[i]);
        sum += granted[i];
    }
    printf("%d pieces granted, all given back: %s\n", sum, free_bytes() == before ? "yes" : "no");
    return 0;
}
