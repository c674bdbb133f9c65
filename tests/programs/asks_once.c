/* Initialises the driver and queries the free memory. */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

int main(void) {
    CUresult (*init)(unsigned);
    CUresult (*get_info)(size_t *, size_t *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    EXPECT(library != NULL);
    void *found[] = {dlsym(library, "cuInit"), dlsym(library, "cuMemGetInfo_v2")};
    memcpy(&init, &found[0], sizeof init);
    memcpy(&get_info, &found[1], sizeof get_info);
    size_t free, total;
    REQUIRE(init(0));
    REQUIRE(get_info(&free, &total));
    printf("free %zu of %zu\n", free, total);
    return 0;
}
