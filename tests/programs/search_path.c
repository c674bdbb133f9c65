/*
 * Opens a library by a name that is found only through the program's own search path (RUNPATH), in the program's
 * namespace and in another one. The argument is the name.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

int main(int count, char **arguments) {
    EXPECT(count == 2);
    void *opened = dlopen(arguments[1], RTLD_NOW);
    printf("dlopen: %s\n", opened ? "yes" : dlerror());
    void *elsewhere = dlmopen(LM_ID_NEWLM, arguments[1], RTLD_NOW);
    printf("dlmopen: %s, another copy: %s\n", elsewhere ? "yes" : dlerror(), elsewhere != opened ? "yes" : "no");
    EXPECT(opened && elsewhere);
    printf("two functions: %s\n", dlsym(opened, "cuInit") != dlsym(elsewhere, "cuInit") ? "yes" : "no");
    printf("missing: %s\n", dlopen("libno-such.so", RTLD_NOW) ? "found" : dlerror());
    void *(*open)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_DEFAULT, "dlopen");
    printf("by a pointer: %s\n", open(arguments[1], RTLD_NOW) == opened ? "yes" : "no");
    printf("the same function: %s\n", open == dlopen ? "yes" : "no");
    return 0;
}
