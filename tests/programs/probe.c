/*
 * Prints which functions exist, asked in every way, before and after the driver is loaded. Programs decide by a NULL
 * what the driver supports, so there must be a NULL exactly where the driver lacks the function.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

static const char *const NAMES[] = {
    "cuInit",          "cuMemAlloc",     "cuMemAlloc_v2",      "cuMemFree_v2",       "cuMemAllocAsync",
    "cuLaunchKernel",  "cuGraphLaunch",  "cuLaunchKernelEx",   "cuGetProcAddress",   "cuGetProcAddress_v2",
    "cuMemCreate",     "cuMemAlloc_v9",  "cuFromTheFuture",    "cuMemAlloc_v2_ptsz", "nvmlDeviceGetMemoryInfo",
    "nvmlInit_v2",     "dlsym",          "dlvsym",             "chroot",             "malloc",
};

/* A look-up function that was itself looked up must also be able to look up. */
static void *through(void *found_dlsym, void *handle, const char *name) {
    void *(*look_up)(void *, const char *);
    memcpy(&look_up, &found_dlsym, sizeof look_up);
    return look_up(handle, name);
}

static void probe(const char *when, void *handle) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const char *name = NAMES[i];
        printf("%s: %s: default %s, next %s", when, name, dlsym(RTLD_DEFAULT, name) ? "yes" : "NULL",
               dlsym(RTLD_NEXT, name) ? "yes" : "NULL");
        printf(", through dlsym %s", through(dlsym(RTLD_DEFAULT, "dlsym"), RTLD_DEFAULT, name) ? "yes" : "NULL");
        if (handle) {
            void *found = dlsym(handle, name), *versioned = dlvsym(handle, name, "DRIVER_1");
            printf(", handle %s", found ? "yes" : "NULL");
            printf(", with a version %s", !versioned ? "NULL" : versioned == found ? "the same" : "another");
        }
        printf("\n");
        /* A failed look-up leaves an error message, which this clears. */
        dlerror();
        if (handle && !dlsym(handle, name))
            printf("%s: %s: %s\n", when, name, dlerror() ? "with a message" : "without a message");
    }
}

int main(void) {
    probe("before", NULL);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != NULL);
    probe("loaded", library);
    EXPECT(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == library);
    probe("global", library);

    void *main_program = dlopen(NULL, RTLD_NOW);
    probe("main program", main_program);

    get_proc_address_v2 *get = (get_proc_address_v2 *)dlsym(library, "cuGetProcAddress_v2");
    for (size_t i = 0; get && i < sizeof NAMES / sizeof *NAMES; i++) {
        void *address = NULL;
        unsigned status = 99;
        CUresult result = get(NAMES[i], &address, 12000, 0, &status);
        printf("cuGetProcAddress: %s: %d, %s, status %u\n", NAMES[i], result, address ? "yes" : "NULL", status);
    }
    return 0;
}
