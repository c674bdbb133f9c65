/*
 * Bypasses preloaded libraries. Arguments: the driver's library; how to use it; bytes to hold; optionally the duration
 * in ns of kernels with which to keep the device busy.
 *
 *   same  loads the library as any program does: preloaded libraries hook it, unless this program runs in secure mode
 *   own   loads a second copy in a separate namespace, and looks its functions up by hand
 *   both  allocates one mebibyte with "same", and the rest with "own"
 *   exec  works as "same", then executes itself without the preloaded libraries
 *   fork  allocates one mebibyte with "same", and the rest in a child with "own"
 *   leave works as "own" in a thread that goes on when the main thread has ended, with a name that is not UTF-8
 */
#define NOT_LINKED
#include "program.h"

#include "look_up_by_hand.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/prctl.h>

typedef void *(*LookUp)(void *library, const char *name);

static void work(void *library, LookUp look_up, uint64_t duration_ns) {
    __typeof__(cuModuleLoadData) *load = look_up(library, "cuModuleLoadData");
    __typeof__(cuModuleGetFunction) *get = look_up(library, "cuModuleGetFunction");
    __typeof__(cuLaunchKernel) *launch = look_up(library, "cuLaunchKernel");
    __typeof__(cuCtxSynchronize) *synchronize = look_up(library, "cuCtxSynchronize");
    EXPECT(load && get && launch && synchronize);
    CUmodule module;
    CUfunction kernel;
    REQUIRE(load(&module, SPIN_PTX));
    REQUIRE(get(&kernel, module, "spin_ns"));
    void *parameters[] = {&duration_ns};
    for (;;) {
        REQUIRE(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
        REQUIRE(synchronize());
    }
}

static void hold(void *library, LookUp look_up, size_t bytes) {
    EXPECT(library != NULL);
    __typeof__(cuInit) *init = look_up(library, "cuInit");
    __typeof__(cuDevicePrimaryCtxRetain) *retain = look_up(library, "cuDevicePrimaryCtxRetain");
    __typeof__(cuCtxSetCurrent) *set_current = look_up(library, "cuCtxSetCurrent");
    __typeof__(cuMemAlloc) *alloc = look_up(library, "cuMemAlloc_v2");
    EXPECT(init && retain && set_current && alloc);
    CUcontext context;
    CUdeviceptr memory;
    REQUIRE(init(0));
    REQUIRE(retain(&context, 0));
    REQUIRE(set_current(context));
    REQUIRE(alloc(&memory, bytes));
}

int main(int count, char **arguments);

static pthread_t main_thread;

static void *go_on(void *arguments) {
    EXPECT(pthread_join(main_thread, NULL) == 0);
    main(4, arguments);
    return NULL;
}

int main(int count, char **arguments) {
    EXPECT(count == 4 || count == 5);
    if (strcmp(arguments[2], "leave") == 0) {
        pthread_t thread;
        main_thread = pthread_self();
        arguments[2] = "own";
        EXPECT(prctl(PR_SET_NAME, "\xd0\xb0\xd0") == 0);
        EXPECT(pthread_create(&thread, NULL, go_on, arguments) == 0);
        pthread_exit(NULL);
    }
    const char *path = arguments[1], *how = arguments[2];
    size_t bytes = strtoull(arguments[3], NULL, 0);
    int is_own = strcmp(how, "own") == 0, is_same = strcmp(how, "same") == 0, is_exec = strcmp(how, "exec") == 0;
    void *library = NULL;
    LookUp look_up = dlsym;
    if (!is_own) {
        library = dlopen(path, RTLD_NOW);
        hold(library, look_up, is_same ? bytes : MIB);
    }
    if (is_exec) {
        arguments[2] = "same";
        unsetenv("LD_PRELOAD");
        execv("/proc/self/exe", arguments);
        EXPECT(!"exec");
    }
    if (strcmp(how, "fork") == 0 && fork() != 0)
        for (;;)
            pause();
    if (!is_same) {
        library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
        look_up = look_up_by_hand;
        hold(library, look_up, bytes);
    }
    printf("held\n");
    fflush(stdout);
    if (count == 5)
        work(library, look_up, strtoull(arguments[4], NULL, 0));
    for (;;)
        pause();
}
