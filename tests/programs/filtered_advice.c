/*
 * Asks for twice the slice's memory while the kernel refuses the advice to wipe memory in a forked child. The argument
 * is the kernel's answer. The simulated GPU gives this advice too, but only for a single page, and gets what it wants.
 */
#include "program.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LOW_HALF(argument) (offsetof(struct seccomp_data, args[argument]))

static void refuse_advice(unsigned answer) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, LOW_HALF(2)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_WIPEONFORK, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, LOW_HALF(1)),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 4096, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    refuse_advice(strtoul(arguments[1], NULL, 10));
    CUdevice device;
    CUcontext context = NULL;
    CUdeviceptr memory;
    REQUIRE(cuInit(0));
    REQUIRE(cuDeviceGet(&device, 0));
    printf("context: %d\n", cuDevicePrimaryCtxRetain(&context, device));
    cuCtxSetCurrent(context);
    printf("memory: %d\n", cuMemAlloc(&memory, 2048 * MIB));
    return 0;
}
