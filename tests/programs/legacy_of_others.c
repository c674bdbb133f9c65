/*
 * A thread launches nine kernels into the legacy default stream and waits for the first three. Then another thread
 * waits for its own stream. The kernels go on at SIGUSR1.
 */
#include "program.h"

#include <pthread.h>
#include <signal.h>

enum { WAITED_FOR = 3, MORE = 6, KERNEL_NS = 1000000 };

static CUcontext context;
static CUfunction kernel;
static pthread_barrier_t launched, waited;

static void *launch(void *unused) {
    (void)unused;
    REQUIRE(cuCtxSetCurrent(context));
    for (int i = 0; i < WAITED_FOR; i++) {
        REQUIRE(spin(kernel, NULL, KERNEL_NS));
        REQUIRE(cuStreamSynchronize(NULL));
    }
    for (int i = 0; i < MORE; i++)
        REQUIRE(spin(kernel, NULL, KERNEL_NS));
    pthread_barrier_wait(&launched);
    pthread_barrier_wait(&waited);
    return NULL;
}

int main(void) {
    sigset_t signals;
    int signal;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);
    context = use_device();
    kernel = spin_kernel();
    CUstream stream;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_t thread;
    EXPECT(pthread_barrier_init(&launched, NULL, 2) == 0 && pthread_barrier_init(&waited, NULL, 2) == 0);
    EXPECT(pthread_create(&thread, NULL, launch, NULL) == 0);
    pthread_barrier_wait(&launched);
    REQUIRE(cuStreamSynchronize(stream));
    printf("waited\n");
    fflush(stdout);
    EXPECT(sigwait(&signals, &signal) == 0);
    pthread_barrier_wait(&waited);
    EXPECT(pthread_join(thread, NULL) == 0);
    REQUIRE(cuCtxSynchronize());
    printf("done\n");
    return 0;
}
