/*
 * Actions of ordinary programs without GPUs, for any C library: threads, children, look-ups, existing and missing
 * libraries. Arguments: optionally a library to load.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/wait.h>

static int objects;

static void *thread_main(void *argument) {
    return argument;
}

static int count_object(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    /* A preloaded library is one more object. What matters is that the whole list can be iterated. */
    objects += info->dlpi_phnum > 0;
    return 0;
}

static const char *found(void *address) {
    return address ? "found" : "not found";
}

int main(int count, char **arguments) {
    pthread_t thread;
    void *result;
    int status;
    EXPECT(pthread_create(&thread, NULL, thread_main, arguments) == 0);
    EXPECT(pthread_join(thread, &result) == 0 && result == arguments);
    printf("malloc: %s\n", found(dlsym(RTLD_DEFAULT, "malloc")));
    printf("the next malloc: %s\n", found(dlsym(RTLD_NEXT, "malloc")));
    printf("cuInit: %s\n", found(dlsym(RTLD_DEFAULT, "cuInit")));
    printf("a missing library: %s\n", found(dlopen("libthat-is-missing.so.1", RTLD_NOW)));
    printf("an error: %s\n", dlerror() ? "yes" : "no");
    for (int i = 1; i < count; i++) {
        void *library = dlopen(arguments[i], RTLD_NOW);
        EXPECT(library != NULL);
        CUresult (*init)(unsigned);
        *(void **)&init = dlsym(library, "cuInit");
        printf("library %d: cuInit %s", i, found(*(void **)&init));
        printf(", answers %d, cuMemAlloc_v2 %s\n", init(0), found(dlsym(library, "cuMemAlloc_v2")));
    }
    dl_iterate_phdr(count_object, NULL);
    EXPECT(objects > 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(3);
    EXPECT(waitpid(child, &status, 0) == child);
    printf("child: %d\n", WEXITSTATUS(status));
    return 7;
}
