/*
 * Preloaded, as libraries that fake the time are: for the program and all its libraries no time ever passes. The simulated
 * GPU alone is told the truth, because a real one has a clock of its own.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now) {
    Dl_info caller;
    if (dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "/libcuda.so"))
        return syscall(SYS_clock_gettime, clock, now);
    *now = (struct timespec){.tv_sec = 1};
    return 0;
}
