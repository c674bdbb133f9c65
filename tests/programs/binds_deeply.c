/*
 * Opens a plugin with RTLD_DEEPBIND and lets it allocate device memory. Arguments: the plugin; the name of its function
 * or "registered"; "now" or "lazy"; bytes.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

static void (*registered)(size_t bytes);

__attribute__((visibility("default"))) void register_plugin(void (*take)(size_t bytes));

void register_plugin(void (*take)(size_t bytes)) {
    registered = take;
}

int main(int count, char **arguments) {
    EXPECT(count == 5);
    int binding = !strcmp(arguments[3], "now") ? RTLD_NOW : RTLD_LAZY;
    void *plugin = dlopen(arguments[1], binding | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!plugin)
        fprintf(stderr, "%s\n", dlerror());
    EXPECT(plugin != NULL);
    void (*take)(size_t bytes) = registered;
    if (strcmp(arguments[2], "registered"))
        take = (void (*)(size_t))dlsym(plugin, arguments[2]);
    EXPECT(take != NULL);
    take(strtoull(arguments[4], NULL, 0));
    return 0;
}
