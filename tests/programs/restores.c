/* Restores itself from a checkpoint that there is not: onto the same device, onto another one, and without a list. */
#include "program.h"

int main(void) {
    CUcheckpointGpuPair pairs[2] = {{{1}, {1}}, {{2}, {2}}};
    CUcheckpointRestoreArgs arguments = {.pairs = pairs, .count = 2};
    use_device();
    printf("the same: %d\n", cuCheckpointProcessRestore(getpid(), &arguments));
    pairs[1].after[15] = 1;
    printf("another: %d\n", cuCheckpointProcessRestore(getpid(), &arguments));
    printf("no list: %d\n", cuCheckpointProcessRestore(getpid(), NULL));
    return 0;
}
