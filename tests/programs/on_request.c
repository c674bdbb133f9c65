/* Allocates the number of MiB requested by files 1, 2, 3... in the directory given as argument. */
#include "program.h"

int main(int count, char **arguments) {
    EXPECT(count == 2);
    use_device();
    for (int number = 1;; number++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", arguments[1], number);
        FILE *request;
        while (!(request = fopen(path, "r")))
            usleep(500);
        unsigned long mebibytes;
        EXPECT(fscanf(request, "%lu", &mebibytes) == 1);
        fclose(request);
        CUdeviceptr memory;
        CUresult result = cuMemAlloc(&memory, mebibytes * MIB);
        printf("request %d: %d, free %zu\ndone %d\n", number, result, free_bytes() / MIB, number);
        fflush(stdout);
    }
}
