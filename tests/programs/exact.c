/* Allocates memory to the last byte, in one piece and in two, and one byte more. The argument is the limit. */
#include "program.h"

int main(int count, char **arguments) {
    EXPECT(count == 2);
    size_t all = strtoull(arguments[1], NULL, 0);
    CUdeviceptr first, second, third;
    use_device();
    printf("free: %zu\n", free_bytes());
    printf("one byte more than all: %d\n", cuMemAlloc(&first, all + 1));
    REQUIRE(cuMemAlloc(&first, all));
    printf("free with all of it taken: %zu\n", free_bytes());
    printf("one byte more: %d\n", cuMemAlloc(&second, 1));
    REQUIRE(cuMemFree(first));

    REQUIRE(cuMemAlloc(&first, all - 4096));
    printf("free with all but 4096 taken: %zu\n", free_bytes());
    printf("4097: %d\n", cuMemAlloc(&second, 4097));
    REQUIRE(cuMemAlloc(&second, 4096));
    printf("and again one byte: %d\n", cuMemAlloc(&third, 1));
    REQUIRE(cuMemFree(second));
    REQUIRE(cuMemFree(first));
    printf("freed twice: %d\n", cuMemFree(first));
    printf("free: %zu\n", free_bytes());
    return 0;
}
