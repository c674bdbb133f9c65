/*
 * A library that lets some of the driver's functions bypass the shim, like a shim with a broken hook. Preloaded before
 * the shim, it answers look-ups of these functions with the driver's own. PASSES, set at compile time, is a list of the
 * prefixes of their names.
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
