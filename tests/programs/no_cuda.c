/* A program without CUDA. Prints what it can see of its own process. */
#define NOT_LINKED
#include "program.h"

#include <dirent.h>
#include <dlfcn.h>

static int entries(const char *path) {
    int count = 0;
    DIR *dir = opendir(path);
    EXPECT(dir != NULL);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++)
        printf("argument: %s\n", arguments[i]);
    printf("threads: %d, descriptors: %d\n", entries("/proc/self/task"), entries("/proc/self/fd"));
    errno = 0;
    dlsym(RTLD_DEFAULT, "no_such_function");
    printf("errno after a look-up: %d, message: %s\n", errno, dlerror() ? "yes" : "no");
    printf("malloc: %s\n", dlsym(RTLD_DEFAULT, "malloc") ? "yes" : "no");
    fprintf(stderr, "to standard error\n");
    return 3;
}
