/*
 * Several copies of the driver in one process: from another file, or in separate namespaces. Arguments: the variant;
 * the other file; bytes. Allocates that many bytes, and one more, with the functions of the last copy.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

static void *open_copy(const char *kind, const char *path) {
    void *library = !strcmp(kind, "file")        ? dlopen(path, RTLD_NOW | RTLD_LOCAL)
                    : !strcmp(kind, "namespace") ? dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW)
                                                 : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    EXPECT(library != NULL);
    return library;
}

static void use(void *library, size_t bytes) {
    struct driver cu;
#define FIND(name, symbol, version, arguments) EXPECT((cu.name = dlsym(library, symbol)) != NULL);
    CUDA_SUBSET(FIND)
#undef FIND
    CUcontext context;
    CUdeviceptr all, more;
    REQUIRE(cu.cuInit(0));
    REQUIRE(cu.cuDevicePrimaryCtxRetain(&context, 0));
    REQUIRE(cu.cuCtxSetCurrent(context));
    REQUIRE(cu.cuMemAlloc(&all, bytes));
    CUresult result = cu.cuMemAlloc(&more, 1);
    printf("one byte more: %d\n", result);
    if (result == CUDA_SUCCESS)
        REQUIRE(cu.cuMemFree(more));
    REQUIRE(cu.cuMemFree(all));
    get_proc_address_v2 *get = (get_proc_address_v2 *)dlsym(library, "cuGetProcAddress_v2");
    void *found = NULL;
    REQUIRE(get("cuMemAlloc", &found, 12000, 0, NULL));
    printf("the same function by both ways: %s\n", found == (void *)cu.cuMemAlloc ? "yes" : "no");
}

int main(int count, char **arguments) {
    EXPECT(count == 4);
    size_t bytes = strtoull(arguments[3], NULL, 0);
    char *kind = strtok(arguments[1], "+");
    void *library = open_copy(kind, arguments[2]);
    use(library, bytes);
    while ((kind = strtok(NULL, "+"))) {
        if (!strcmp(kind, "close"))
            EXPECT(dlclose(library) == 0);
        else
            use(library = open_copy(kind, arguments[2]), bytes);
    }
    return 0;
}
