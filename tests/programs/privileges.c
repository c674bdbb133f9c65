/* Becomes the user nobody after its start and before it uses CUDA. Must be started by root. */
#include "program.h"

#include <grp.h>

int main(void) {
    const unsigned nobody = 65534;
    EXPECT(setgroups(0, NULL) == 0);
    EXPECT(setresgid(nobody, nobody, nobody) == 0);
    EXPECT(setresuid(nobody, nobody, nobody) == 0);
    CUdeviceptr memory;
    use_device();
    printf("free: %zu\n", free_bytes());
    printf("too much: %d\n", cuMemAlloc(&memory, free_bytes() + 1));
    REQUIRE(cuMemAlloc(&memory, free_bytes()));
    printf("free: %zu\n", free_bytes());
    return 0;
}
