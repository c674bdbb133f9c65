/*
 * Changes its root directory before or after it starts to use CUDA. Arguments: before or after; the new root. Must be
 * started by root.
 */
#include "program.h"

static void change_root(const char *root) {
    errno = 0;
    EXPECT(chroot("/nowhere/at/all") == -1 && errno == ENOENT);
    EXPECT(chroot(root) == 0 && chdir("/") == 0);
}

int main(int count, char **arguments) {
    EXPECT(count == 3);
    CUdeviceptr memory;
    if (!strcmp(arguments[1], "before"))
        change_root(arguments[2]);
    use_device();
    if (!strcmp(arguments[1], "after"))
        change_root(arguments[2]);
    size_t all = free_bytes();
    printf("free: %zu\n", all);
    printf("too much: %d\n", cuMemAlloc(&memory, all + 1));
    REQUIRE(cuMemAlloc(&memory, all));
    printf("free: %zu\n", free_bytes());
    REQUIRE(cuMemFree(memory));
    return 0;
}
