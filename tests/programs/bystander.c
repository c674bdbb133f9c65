/* Uses the device 200 times without launching a kernel. Argument: "copies" or "host functions". */
#include "program.h"

enum { ROUNDS = 200, BYTES = 1 << 16 };

static int calls;

static void called(void *unused) {
    (void)unused;
    calls++;
}

static void copy(CUstream stream) {
    static char host[BYTES];
    static CUdeviceptr memory;
    if (!memory)
        REQUIRE(cuMemAlloc(&memory, 2 * BYTES));
    REQUIRE(cuMemcpyHtoD(memory, host, BYTES));
    REQUIRE(cuMemcpyDtoDAsync(memory + BYTES, memory, BYTES, stream));
    REQUIRE(cuMemsetD8Async(memory, 0, BYTES, stream));
    REQUIRE(cuStreamSynchronize(stream));
    REQUIRE(cuMemcpyDtoH(host, memory, BYTES));
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    int copies = !strcmp(arguments[1], "copies");
    CUstream stream;
    use_device();
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < ROUNDS; i++) {
        if (copies) {
            copy(stream);
            continue;
        }
        REQUIRE(cuLaunchHostFunc(stream, called, NULL));
        REQUIRE(cuStreamSynchronize(stream));
    }
    printf("%d rounds, %d calls\n", ROUNDS, calls);
    return 0;
}
