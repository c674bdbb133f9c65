/*
 * Launches kernels into the legacy default stream, holds up a blocking stream until the end, and works in another
 * blocking stream, for which it waits. This never waits for the stream that is held up.
 */
#include "program.h"

#include <semaphore.h>

enum { WAITED_FOR = 3, MORE = 6, KERNEL_NS = 100000 };

static sem_t end;

static void hold(void *unused) {
    (void)unused;
    sem_wait(&end);
}

int main(void) {
    use_device();
    CUfunction kernel = spin_kernel();
    CUstream held, working;
    CUevent event;
    EXPECT(sem_init(&end, 0, 0) == 0);
    REQUIRE(cuEventCreate(&event, 0));
    REQUIRE(cuStreamCreate(&held, 0));
    REQUIRE(cuStreamCreate(&working, 0));
    for (int i = 0; i < WAITED_FOR; i++) {
        REQUIRE(spin(kernel, NULL, KERNEL_NS));
        REQUIRE(cuStreamSynchronize(NULL));
    }
    for (int i = 0; i < MORE; i++)
        REQUIRE(spin(kernel, NULL, KERNEL_NS));
    REQUIRE(cuLaunchHostFunc(held, hold, NULL));
    REQUIRE(spin(kernel, working, KERNEL_NS));
    REQUIRE(cuEventRecord(event, working));
    REQUIRE(cuEventSynchronize(event));
    REQUIRE(spin(kernel, working, KERNEL_NS));
    alarm(120);
    REQUIRE(cuStreamSynchronize(working));
    sem_post(&end);
    REQUIRE(cuCtxSynchronize());
    printf("done\n");
    return 0;
}
