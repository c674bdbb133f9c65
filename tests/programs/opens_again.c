/*
 * Three times opens a plugin that loads the driver, lets it allocate device memory, and closes it. Each time the driver
 * is loaded at another address. Arguments: the plugin; bytes.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>
#include <sys/mman.h>

int main(int count, char **arguments) {
    EXPECT(count == 3);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int round = 0; round < 3; round++) {
        void *plugin = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        EXPECT(plugin != NULL);
        CUresult (*take_one)(size_t) = (CUresult(*)(size_t))dlsym(plugin, "take_one");
        void *driver = dlsym(plugin, "cuDriverGetVersion");
        EXPECT(take_one && driver);
        printf("too much: %d\n", take_one(strtoull(arguments[2], NULL, 0)));
        EXPECT(dlclose(plugin) == 0);
        void *there = (void *)((uintptr_t)driver & -page);
        EXPECT(mmap(there, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == there);
    }
    return 0;
}
