/*
 * Threads allocate pieces until one is refused to each. Prints how many they got, and holds them. At SIGUSR1 the program
 * frees all of them, at once allocates as many bytes as it had in pieces and `more` bytes, and prints the result.
 * Arguments: the bytes of a piece, the number of threads, and `more`.
 */
#include "program.h"

#include <pthread.h>
#include <signal.h>

#define PIECES_MAX (1 << 18)
#define THREADS_MAX 16

static CUcontext context;
static size_t bytes;
static CUdeviceptr pieces[PIECES_MAX];
static long count;

static void *fill(void *argument) {
    (void)argument;
    CUdeviceptr piece;
    CUresult result;
    REQUIRE(cuCtxSetCurrent(context));
    while ((result = cuMemAlloc(&piece, bytes)) == CUDA_SUCCESS) {
        long place = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
        EXPECT(place < PIECES_MAX);
        pieces[place] = piece;
    }
    EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
    return NULL;
}

int main(int arguments_count, char **arguments) {
    EXPECT(arguments_count == 4);
    bytes = strtoull(arguments[1], NULL, 0);
    int threads_count = atoi(arguments[2]);
    EXPECT(threads_count <= THREADS_MAX);
    pthread_t threads[THREADS_MAX];
    sigset_t signals;
    int signal;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);
    context = use_device();
    for (int i = 0; i < threads_count; i++)
        EXPECT(pthread_create(&threads[i], NULL, fill, NULL) == 0);
    for (int i = 0; i < threads_count; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    printf("%ld pieces\n", count);
    fflush(stdout);
    EXPECT(sigwait(&signals, &signal) == 0);
    for (long i = 0; i < count; i++)
        REQUIRE(cuMemFree(pieces[i]));
    CUdeviceptr all;
    printf("then all: %d\n", cuMemAlloc(&all, count * bytes + strtoull(arguments[3], NULL, 0)));
    fflush(stdout);
    for (;;)
        pause();
}
