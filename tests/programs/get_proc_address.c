/*
 * Asks cuGetProcAddress for every function in every way, before and after cuInit, and prints which function each answer
 * is. With an argument, then allocates that many bytes and one more, with each function that it got.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

static void *library;

static const char *const entries[] = {
    "cuGetProcAddress", "cuGetProcAddress_ptsz", "cuGetProcAddress_v2", "cuGetProcAddress_v2_ptsz",
};
static const char *const names[] = {
    "cuGetProcAddress", "cuMemAlloc",     "cuMemAllocAsync",  "cuLaunchKernel", "cuStreamSynchronize",
    "cuCtxCreate",      "cuMemGetInfo",   "cuFromTheFuture",  "",               "cuMemAlloc_v2",
    "cuMemcpyHtoD",     "cuGraphLaunch",
};
static const int versions[] = {0, 2000, 3020, 7000, 11020, 11030, 11080, 12000, 12050, 13000, 13050, 99000, -1};
static const unsigned long long flags[] = {0, 1, 2, 3, 4};
/* Suffixes of the symbols that the driver may return. */
static const char *const suffixes[] = {"", "_v2", "_v3", "_v4", "_ptsz", "_v2_ptsz", "_ptds", "_v2_ptds"};

static CUresult ask(const char *entry, const char *name, void **address, int version, unsigned long long flags,
                    unsigned *status) {
    void *function = dlsym(library, entry);
    EXPECT(function != NULL);
    if (strstr(entry, "_v2"))
        return ((get_proc_address_v2 *)function)(name, address, version, flags, status);
    return ((get_proc_address_v1 *)function)(name, address, version, flags);
}

static void say_which(const char *name, void *address) {
    if (!address) {
        printf(" NULL");
        return;
    }
    for (size_t suffix = 0; suffix < sizeof suffixes / sizeof *suffixes; suffix++) {
        char symbol[64];
        snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[suffix]);
        if (dlsym(library, symbol) == address)
            printf(" %s", symbol);
    }
}

static void ask_all(void) {
    for (size_t e = 0; e < sizeof entries / sizeof *entries; e++) {
        if (!dlsym(library, entries[e])) {
            printf("no %s\n", entries[e]);
            continue;
        }
        for (size_t n = 0; n < sizeof names / sizeof *names; n++)
            for (size_t v = 0; v < sizeof versions / sizeof *versions; v++)
                for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
                    void *address = NULL;
                    unsigned status = 77;
                    CUresult result = ask(entries[e], names[n], &address, versions[v], flags[f], &status);
                    printf("%s(%s, %d, %llu): %d, status %u,", entries[e], names[n], versions[v], flags[f], result, status);
                    say_which(names[n], address);
                    printf("\n");
                }
        void *address = NULL;
        printf("%s without a name: %d", entries[e], ask(entries[e], NULL, &address, 12000, 0, NULL));
        printf(", without a place: %d", ask(entries[e], "cuMemAlloc", NULL, 12000, 0, NULL));
        printf(", without a status: %d", ask(entries[e], "cuMemAlloc", &address, 12000, 0, NULL));
        printf(", unknown without a status: %d\n", ask(entries[e], "cuFromTheFuture", &address, 12000, 0, NULL));
    }
}

typedef CUresult allocate(CUdeviceptr *address, size_t bytes);
typedef CUresult allocate_in_order(CUdeviceptr *address, size_t bytes, CUstream stream);

/* Allocates everything, and one byte more, with the function that `entry` returns for `flags`. */
static void take(const char *entry, unsigned long long flags, CUresult (*release)(CUdeviceptr), size_t bytes) {
    void *next = NULL, *function = NULL;
    CUdeviceptr all, more;
    if (!dlsym(library, entry))
        return;
    /* As in runtime libraries, the look-up function itself is looked up. */
    int version = strstr(entry, "_v2") ? 12000 : 11030;
    REQUIRE(ask(entry, "cuGetProcAddress", &next, version, flags, NULL));
    int is_v2 = version == 12000;
#define GET(name, version)                                                                         \
    REQUIRE(is_v2 ? ((get_proc_address_v2 *)next)(name, &function, version, flags, NULL)           \
                  : ((get_proc_address_v1 *)next)(name, &function, version, flags))
    GET("cuMemAlloc", 3020);
    REQUIRE(((allocate *)function)(&all, bytes));
    printf("%s, flags %llu: one byte more: %d", entry, flags, ((allocate *)function)(&more, 1));
    GET("cuMemAllocAsync", 11020);
    printf(", in order of a stream: %d\n", ((allocate_in_order *)function)(&more, 1, NULL));
    REQUIRE(release(all));
#undef GET
}

int main(int count, char **arguments) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != NULL);
    if (count == 1) {
        printf("before cuInit\n");
        ask_all();
        __typeof__(cuInit) *init = dlsym(library, "cuInit");
        REQUIRE(init(0));
        printf("after cuInit\n");
        ask_all();
        return 0;
    }
    CUcontext context;
    REQUIRE(((__typeof__(cuInit) *)dlsym(library, "cuInit"))(0));
    REQUIRE(((__typeof__(cuDevicePrimaryCtxRetain) *)dlsym(library, "cuDevicePrimaryCtxRetain"))(&context, 0));
    REQUIRE(((__typeof__(cuCtxSetCurrent) *)dlsym(library, "cuCtxSetCurrent"))(context));
    __typeof__(cuMemFree) *release = dlsym(library, "cuMemFree_v2");
    for (size_t e = 0; e < sizeof entries / sizeof *entries; e++)
        for (unsigned long long flags = 0; flags < 3; flags++)
            take(entries[e], flags, release, strtoull(arguments[1], NULL, 0));
    return 0;
}
