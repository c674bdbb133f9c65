/*
 * Calls the functions named by its arguments with all arguments null or 0, each with a context current, and prints the
 * results.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

/* More arguments than any function has, including those that are passed by value in memory. */
typedef CUresult any_function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                              uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

int main(int count, char **arguments) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library);
    __typeof__(&cuInit) init = dlsym(library, "cuInit");
    __typeof__(&cuDevicePrimaryCtxRetain) retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    __typeof__(&cuCtxSetCurrent) set_current = dlsym(library, "cuCtxSetCurrent");
    __typeof__(&cuMemGetInfo) memory_info = dlsym(library, "cuMemGetInfo_v2");
    size_t free_before = 0, free_after = 0, total;
    REQUIRE(init(0));
    for (int i = 1; i < count; i++) {
        CUcontext context;
        any_function *function = (any_function *)dlsym(library, arguments[i]);
        if (!function) {
            printf("%s: not there\n", arguments[i]);
            continue;
        }
        /* The previous function may have ended the context. */
        REQUIRE(retain(&context, 0));
        REQUIRE(set_current(context));
        if (!free_before)
            REQUIRE(memory_info(&free_before, &total));
        printf("%s: ", arguments[i]);
        fflush(stdout);
        printf("%d\n", function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
        fflush(stdout);
    }
    REQUIRE(memory_info(&free_after, &total));
    printf("as much is free as before: %s\n", free_before == free_after ? "yes" : "no");
    return 0;
}
