/*
 * Several threads open a plugin with RTLD_DEEPBIND, use it and close it at the same time, while other threads look
 * functions up. Arguments: the plugin; bytes to allocate.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 100 };

static const char *path;
static size_t bytes;
static atomic_int granted, refused, ended;

static void *open_and_use(void *unused) {
    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        EXPECT(plugin != NULL);
        CUresult (*take_one)(size_t) = (CUresult(*)(size_t))dlsym(plugin, "take_one");
        EXPECT(take_one != NULL);
        CUresult result = take_one(bytes);
        EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        atomic_fetch_add(result == CUDA_SUCCESS ? &granted : &refused, 1);
        EXPECT(dlclose(plugin) == 0);
    }
    atomic_fetch_add(&ended, 1);
    return NULL;
}

static void *look_up(void *unused) {
    while (atomic_load(&ended) < THREADS)
        EXPECT(dlsym(RTLD_DEFAULT, "printf") != NULL);
    return unused;
}

int main(int count, char **arguments) {
    EXPECT(count == 3);
    path = arguments[1];
    bytes = strtoull(arguments[2], NULL, 0);
    /* The driver stays loaded while the plugin is loaded and unloaded. */
    EXPECT(dlopen("libcuda.so.1", RTLD_NOW) != NULL);
    pthread_t threads[THREADS + 1];
    for (int thread = 0; thread <= THREADS; thread++)
        EXPECT(pthread_create(&threads[thread], NULL, thread < THREADS ? open_and_use : look_up, NULL) == 0);
    for (int thread = 0; thread <= THREADS; thread++)
        EXPECT(pthread_join(threads[thread], NULL) == 0);
    printf("granted %d, refused %d\n", granted, refused);
    return 0;
}
