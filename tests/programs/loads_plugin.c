/* A program without CUDA that loads a plugin. Only the plugin sees the plugin's libraries. */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

int main(int count, char **arguments) {
    void *plugin = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void (*look)(void) = plugin ? (void (*)(void))dlsym(plugin, "look") : NULL;
    EXPECT(look != NULL);
    look();
    printf("the program finds cuMemAlloc_v2: %s\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") ? "yes" : "no");
    return 0;
}
