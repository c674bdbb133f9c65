/* Loads a module with a variable of 20 MiB. Asks for 50 MiB, and for 40. */
#include "program.h"

static const char VARIABLE_PTX[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .global .align 4 .b8 variable[20971520];\n";

int main(void) {
    CUmodule module;
    CUdeviceptr memory;
    use_device();
    REQUIRE(cuModuleLoadData(&module, VARIABLE_PTX));
    printf("50 MiB: %d\n", cuMemAlloc(&memory, 50 * MIB));
    printf("40 MiB: %d\n", cuMemAlloc(&memory, 40 * MIB));
    return 0;
}
