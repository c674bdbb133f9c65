/*
 * A library that lets some of the driver's functions pass by the shim, as a shim with a broken hook would: preloaded in front of
 * the shim, it answers look-ups of them with the driver's own. Which ones is said when it is compiled: PASSES is a list of what
 * their names begin with.
 */
#define NOT_LINKED
#include "program.h"

#include "look_up_by_hand.h"

#include <dlfcn.h>

static const char *const passes[] = {PASSES};

__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name) {
    static void *(*next)(void *, const char *);
    if (!next)
        next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = next(handle, name);
    if (!found || handle == RTLD_DEFAULT || handle == RTLD_NEXT)
        return found;
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        if (strncmp(name, passes[i], strlen(passes[i])) == 0)
            return look_up_by_hand(handle, name);
    return found;
}
