/* A preloaded library that fakes the time: for the program and all its libraries the time never changes. */
#define NOT_LINKED
#include "program.h"

#include <time.h>

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    *now = (struct timespec){.tv_sec = 1};
    return 0;
}
