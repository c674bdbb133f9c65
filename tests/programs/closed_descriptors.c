/*
 * Closes its standard descriptors, and opens its own file, which becomes descriptor 2, to which messages would go.
 * Arguments: the data file; the result file.
 */
#include "program.h"

#include <fcntl.h>

int main(int count, char **arguments) {
    EXPECT(count == 3);
    CUdeviceptr memory;
    for (int descriptor = 0; descriptor < 3; descriptor++)
        close(descriptor);
    int highest = -1;
    while (highest < 2)
        highest = open(arguments[1], O_RDWR | O_CREAT | O_APPEND, 0600);
    CUresult initialised = cuInit(0);
    CUcontext context;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0));
    REQUIRE(cuCtxSetCurrent(context));
    CUresult granted = cuMemAlloc(&memory, MIB), refused = cuMemAlloc(&memory, (size_t)1 << 50);
    FILE *result = fopen(arguments[2], "w");
    EXPECT(result != NULL);
    fprintf(result, "cuInit %d, cuMemAlloc %d and %d\n", initialised, granted, refused);
    return fclose(result);
}
