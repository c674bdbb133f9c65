/*
 * Ends while its threads launch. Argument: exit, _exit, quick_exit, abort, return, or thread (the first thread ends,
 * and another one ends the program).
 */
#include "program.h"

#include <pthread.h>

static CUcontext context;
static CUfunction kernel;
static volatile int launched;

static void *launch(void *unused) {
    REQUIRE(cuCtxSetCurrent(context));
    /* The driver may refuse calls while the program is ending. */
    while (spin(kernel, NULL, 20000) == CUDA_SUCCESS)
        launched = 1;
    for (;;)
        pause();
    return unused;
}

static void *end_program(void *unused) {
    usleep(1000);
    exit(7);
    return unused;
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    context = use_device();
    kernel = spin_kernel();
    pthread_t thread;
    for (int i = 0; i < 4; i++)
        EXPECT(pthread_create(&thread, NULL, launch, NULL) == 0);
    while (!launched)
        usleep(100);
    if (!strcmp(arguments[1], "exit"))
        exit(7);
    if (!strcmp(arguments[1], "_exit"))
        _exit(7);
    if (!strcmp(arguments[1], "quick_exit"))
        quick_exit(7);
    if (!strcmp(arguments[1], "abort"))
        abort();
    if (!strcmp(arguments[1], "thread")) {
        EXPECT(pthread_create(&thread, NULL, end_program, NULL) == 0);
        pthread_exit(NULL);
    }
    return 7;
}
