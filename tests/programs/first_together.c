/* Threads take the first references to the primary context at the same time. Prints how many of them got one. */
#include "program.h"

#include <pthread.h>

enum { THREADS = 8 };

static pthread_barrier_t together;

static void *begin(void *unused) {
    CUcontext context;
    (void)unused;
    pthread_barrier_wait(&together);
    return (void *)(intptr_t)(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
}

int main(void) {
    pthread_t threads[THREADS];
    int begun = 0;
    REQUIRE(cuInit(0));
    EXPECT(pthread_barrier_init(&together, NULL, THREADS) == 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, begin, NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        void *has_begun;
        EXPECT(pthread_join(threads[i], &has_begun) == 0);
        begun += has_begun != NULL;
    }
    printf("%d of %d\n", begun, THREADS);
    return 0;
}
