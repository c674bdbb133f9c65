/*
 * Keeps two devices busy until it is killed. In each round a kernel on each device waits for the other one, as in
 * collective communication. Prints the number of completed rounds. Arguments: duration in ns of the two kernels after
 * both have arrived; duration in ns of the kernels before them.
 */
#include "program.h"

enum { DEVICES = 2, ROUNDS_AT_ONCE = 4 };

static const char RENDEZVOUS_PTX[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry rendezvous(.param .u64 own, .param .u64 peer, .param .u64 number, .param .u64 duration_ns)\n"
    "{\n"
    "    .reg .pred %p<3>;\n"
    "    .reg .u64 %t<9>;\n"
    "    ld.param.u64 %t1, [own];\n"
    "    ld.param.u64 %t2, [peer];\n"
    "    ld.param.u64 %t3, [number];\n"
    "    ld.param.u64 %t4, [duration_ns];\n"
    "    st.volatile.u64 [%t1], %t3;\n"
    "    membar.sys;\n"
    "meet:\n"
    "    ld.volatile.u64 %t5, [%t2];\n"
    "    setp.lt.u64 %p1, %t5, %t3;\n"
    "    @%p1 bra meet;\n"
    "    mov.u64 %t6, %globaltimer;\n"
    "work:\n"
    "    mov.u64 %t7, %globaltimer;\n"
    "    sub.u64 %t8, %t7, %t6;\n"
    "    setp.lt.u64 %p2, %t8, %t4;\n"
    "    @%p2 bra work;\n"
    "    ret;\n"
    "}\n";

struct side {
    CUcontext context;
    CUstream stream;
    CUfunction compute, meet;
};

int main(int count, char **arguments) {
    EXPECT(count == 3);
    uint64_t meeting_ns = strtoull(arguments[1], NULL, 0), compute_ns = strtoull(arguments[2], NULL, 0);
    struct side sides[DEVICES];
    uint64_t *counters;
    REQUIRE(cuInit(0));
    for (int i = 0; i < DEVICES; i++) {
        struct side *side = &sides[i];
        CUmodule module;
        REQUIRE(cuDevicePrimaryCtxRetain(&side->context, i));
        REQUIRE(cuCtxSetCurrent(side->context));
        REQUIRE(cuStreamCreate(&side->stream, CU_STREAM_NON_BLOCKING));
        side->compute = spin_kernel();
        REQUIRE(cuModuleLoadData(&module, RENDEZVOUS_PTX));
        REQUIRE(cuModuleGetFunction(&side->meet, module, "rendezvous"));
    }
    /* Both devices access it at this address. */
    REQUIRE(cuMemHostAlloc((void **)&counters, DEVICES * sizeof *counters, 1));
    memset(counters, 0, DEVICES * sizeof *counters);
    printf("busy\n");
    fflush(stdout);
    for (uint64_t round = 1;; round++) {
        for (int i = 0; i < DEVICES; i++) {
            struct side *side = &sides[i];
            uint64_t *own = &counters[i], *peer = &counters[1 - i];
            void *parameters[] = {&own, &peer, &round, &meeting_ns};
            REQUIRE(cuCtxSetCurrent(side->context));
            if (compute_ns)
                REQUIRE(spin(side->compute, side->stream, compute_ns));
            REQUIRE(cuLaunchKernel(side->meet, 1, 1, 1, 1, 1, 1, 0, side->stream, parameters, NULL));
        }
        if (round % ROUNDS_AT_ONCE)
            continue;
        for (int i = 0; i < DEVICES; i++)
            REQUIRE(cuStreamSynchronize(sides[i].stream));
        printf("%llu rounds\n", (unsigned long long)round);
        fflush(stdout);
    }
}
