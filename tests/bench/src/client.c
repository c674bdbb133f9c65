/*
 * The measured program: a plain program linked to the driver that does not know of slices. Prints one number.
 *
 *   launch THREADS   ns of a launch, in each thread's own processor time
 *   pair LIVE        ns of an allocation and its release, with LIVE other allocations
 *   info             ns of cuMemGetInfo
 *   start            ns of cuInit and the first context
 *   race BYTES MS    repeatedly allocates pieces until there is no more memory, and frees them; prints how often
 */
#include "../../programs/program.h"

#include <pthread.h>
#include <time.h>

#define BATCHES 41
#define THREADS_MAX 16

static double now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *left, const void *right) {
    double l = *(const double *)left, r = *(const double *)right;
    return (l > r) - (l < r);
}

static double median(double *values, int count) {
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

/* Measures the processor time of the calling thread, which is a call's cost also with more threads than processors. */
#define MEASURE(calls, call)                                             \
    ({                                                                   \
        double batches_[BATCHES];                                        \
        for (int batch_ = 0; batch_ < BATCHES; batch_++) {               \
            double start_ = now_ns(CLOCK_THREAD_CPUTIME_ID);             \
            for (int i_ = 0; i_ < (calls); i_++)                         \
                call;                                                    \
            batches_[batch_] = (now_ns(CLOCK_THREAD_CPUTIME_ID) - start_) / (calls); \
        }                                                                \
        median(batches_, BATCHES);                                       \
    })

struct launcher {
    pthread_t thread;
    CUcontext context;
    CUfunction kernel;
    pthread_barrier_t *barrier;
    double ns;
};

static void *launch(void *argument) {
    struct launcher *launcher = argument;
    uint64_t duration_ns = 0;
    void *parameters[] = {&duration_ns};
    CUstream stream;
    REQUIRE(cuCtxSetCurrent(launcher->context));
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_barrier_wait(launcher->barrier);
    launcher->ns =
        MEASURE(100000, REQUIRE(cuLaunchKernel(launcher->kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL)));
    return NULL;
}

static double launch_by(int threads) {
    struct launcher launchers[THREADS_MAX];
    double ns[THREADS_MAX];
    pthread_barrier_t barrier;
    EXPECT(threads >= 1 && threads <= THREADS_MAX);
    pthread_barrier_init(&barrier, NULL, threads);
    CUcontext context = use_device();
    CUfunction kernel = spin_kernel();
    for (int i = 0; i < threads; i++) {
        launchers[i] = (struct launcher){.context = context, .kernel = kernel, .barrier = &barrier};
        EXPECT(pthread_create(&launchers[i].thread, NULL, launch, &launchers[i]) == 0);
    }
    for (int i = 0; i < threads; i++) {
        EXPECT(pthread_join(launchers[i].thread, NULL) == 0);
        ns[i] = launchers[i].ns;
    }
    return median(ns, threads);
}

static double pair(long live) {
    CUdeviceptr address;
    use_device();
    for (long i = 0; i < live; i++)
        REQUIRE(cuMemAlloc(&address, 4096));
    return MEASURE(20000, {
        REQUIRE(cuMemAlloc(&address, 4096));
        REQUIRE(cuMemFree(address));
    });
}

static double info(void) {
    size_t free, total;
    use_device();
    return MEASURE(100000, REQUIRE(cuMemGetInfo(&free, &total)));
}

static double start(void) {
    double begin = now_ns(CLOCK_MONOTONIC);
    use_device();
    return now_ns(CLOCK_MONOTONIC) - begin;
}

static double race(size_t bytes, double milliseconds) {
    double end = now_ns(CLOCK_MONOTONIC) + milliseconds * 1e6;
    CUdeviceptr *pieces = NULL;
    size_t room = 0;
    long granted = 0;
    use_device();
    do {
        size_t held = 0;
        CUresult result;
        CUdeviceptr piece;
        while ((result = cuMemAlloc(&piece, bytes)) == CUDA_SUCCESS) {
            if (held == room) {
                room = room ? 2 * room : 64;
                EXPECT((pieces = realloc(pieces, room * sizeof *pieces)) != NULL);
            }
            pieces[held++] = piece;
        }
        EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
        granted += held;
        while (held > 0)
            REQUIRE(cuMemFree(pieces[--held]));
    } while (now_ns(CLOCK_MONOTONIC) < end);
    free(pieces);
    return (double)granted;
}

int main(int count, char **arguments) {
    EXPECT(count >= 2);
    const char *what = arguments[1];
    double number;
    if (!strcmp(what, "launch") && count == 3)
        number = launch_by(atoi(arguments[2]));
    else if (!strcmp(what, "pair") && count == 3)
        number = pair(atol(arguments[2]));
    else if (!strcmp(what, "info"))
        number = info();
    else if (!strcmp(what, "start"))
        number = start();
    else if (!strcmp(what, "race") && count == 4)
        number = race(strtoull(arguments[2], NULL, 0), atof(arguments[3]));
    else
        return 2;
    printf("%.3f\n", number);
    return 0;
}
