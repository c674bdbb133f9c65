/*
 * A preloaded library that fakes the time: the program's clocks jump forward and back by hours at each reading. With
 * JUMPING_CLOCK=wall only the wall clock jumps, as when an administrator sets it. The simulated GPU gets the true time,
 * because a real GPU has its own clock.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>

static int jumps(clockid_t clock, const void *caller) {
    Dl_info found;
    const char *which = getenv("JUMPING_CLOCK");
    if (dladdr(caller, &found) && strstr(found.dli_fname, "/libcuda.so"))
        return 0;
    return clock == CLOCK_REALTIME || !which || strcmp(which, "wall");
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now) {
    static unsigned asked;
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && jumps(clock, __builtin_return_address(0))) {
        long hours = (long)(__atomic_fetch_add(&asked, 1, __ATOMIC_RELAXED) * 2654435761u >> 24) - 100;
        now->tv_sec += hours * 3600;
        /* A clock cannot be before its start. */
        if (now->tv_sec < 1)
            now->tv_sec = 1;
    }
    return result;
}
