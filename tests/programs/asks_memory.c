/* Prints memory figures in bytes: total and free by CUDA; total, free and used by NVML. */
#include "program.h"

#include <dlfcn.h>

int main(void) {
    struct {
        unsigned long long total, free, used;
    } memory;
    size_t free, total;
    void *device, *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    EXPECT(library);
    int (*init)(void) = dlsym(library, "nvmlInit_v2");
    int (*get_device)(unsigned, void **) = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    int (*get_memory)(void *, void *) = dlsym(library, "nvmlDeviceGetMemoryInfo");
    use_device();
    REQUIRE(cuMemGetInfo(&free, &total));
    EXPECT(init() == 0 && get_device(0, &device) == 0 && get_memory(device, &memory) == 0);
    printf("%zu %zu %llu %llu %llu\n", total, free, memory.total, memory.free, memory.used);
    return 0;
}
