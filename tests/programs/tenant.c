/*
 * Allocates and frees memory, launches and waits, in an order decided by a seed. It goes on after any result, and
 * counts the results. Arguments: the file for the counters, then arguments of the form name=value:
 *
 *   seed=N       seed of the random numbers [1]
 *   steps=N      ends after this number of steps; 0: never [0]
 *   bytes=N      maximum size of a piece of memory; 0: allocates none [0]
 *   kernel_ns=N  duration of a kernel in ns; 0: launches none [0]
 *   sync=N       kernels between two synchronisations [16]
 *   devices=N    number of devices to use [1]
 *   pause_us=N   longest pause after each step in µs [0]
 *   children=N   starts a thread and a child every N steps, and waits for them; 0: never [0]
 */
#include "program.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PIECES = 12, DEVICES_MAX = 4 };

/* Read by the test while the program runs: see counts.rs. */
static struct counts {
    /* Returned calls; granted and refused allocations; launches. */
    uint64_t calls, granted, refused, launches;
    /* Calls with a result other than success or out of memory, and the last such result. */
    uint64_t unexpected, last_unexpected;
} volatile *counts;

enum kind { NOTHING, LINEAR, ORDERED, MANAGED, PHYSICAL, KINDS };

static struct piece {
    enum kind kind;
    int device;
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
} pieces[PIECES];

static unsigned long seed = 1, steps, bytes_max, kernel_ns, sync_after = 16, device_count = 1, pause_us, children;
static CUcontext contexts[DEVICES_MAX];
static CUfunction kernels[DEVICES_MAX];

static unsigned long pick(unsigned long below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static void count(CUresult result) {
    counts->calls++;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
        counts->unexpected++;
        counts->last_unexpected = (uint64_t)result;
    }
}

static CUresult take(struct piece *piece, int device) {
    size_t bytes = (1 + pick(16)) * (bytes_max / 16);
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    piece->device = device;
    piece->kind = (enum kind)(1 + pick(KINDS - 1));
    switch (piece->kind) {
    case LINEAR:
        return cuMemAlloc(&piece->address, bytes);
    case ORDERED:
        return cuMemAllocAsync(&piece->address, bytes, NULL);
    case MANAGED:
        return cuMemAllocManaged(&piece->address, bytes, CU_MEM_ATTACH_GLOBAL);
    default:
        return cuMemCreate(&piece->handle, (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB), &properties, 0);
    }
}

static CUresult give_back(struct piece *piece) {
    enum kind kind = piece->kind;
    piece->kind = NOTHING;
    if (kind == PHYSICAL)
        return cuMemRelease(piece->handle);
    if (kind != ORDERED)
        return cuMemFree(piece->address);
    /*
     * A stream may reuse freed memory before it reaches the free. After this wait, the held memory is the charged
     * memory.
     */
    CUresult result = cuMemFreeAsync(piece->address, NULL);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : result;
}

static void step_of_memory(int device) {
    struct piece *piece = &pieces[pick(PIECES)];
    if (piece->kind != NOTHING) {
        count(cuCtxSetCurrent(contexts[piece->device]));
        count(give_back(piece));
        return;
    }
    CUresult result = take(piece, device);
    count(result);
    if (result == CUDA_SUCCESS) {
        counts->granted++;
    } else {
        piece->kind = NOTHING;
        counts->refused++;
    }
}

static void step_of_launch(int device) {
    count(spin(kernels[device], NULL, kernel_ns));
    if (++counts->launches % sync_after == 0)
        count(cuCtxSynchronize());
}

static void *does_nothing(void *argument) {
    return argument;
}

/* If no more threads or processes are permitted, the program goes on without them. */
static void step_of_children(void) {
    pthread_t thread;
    int status;
    if (pthread_create(&thread, NULL, does_nothing, NULL) == 0)
        EXPECT(pthread_join(thread, NULL) == 0);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    while (child > 0 && waitpid(child, &status, 0) < 0)
        EXPECT(errno == EINTR);
}

static void read_arguments(int count, char **arguments) {
    const struct {
        const char *name;
        unsigned long *value;
    } numbers[] = {{"seed", &seed}, {"steps", &steps}, {"bytes", &bytes_max}, {"kernel_ns", &kernel_ns}, {"sync", &sync_after},
                   {"devices", &device_count}, {"pause_us", &pause_us}, {"children", &children}};
    for (int i = 2; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        int known = 0;
        EXPECT(value != NULL);
        *value++ = '\0';
        for (size_t number = 0; number < sizeof numbers / sizeof *numbers; number++) {
            if (strcmp(arguments[i], numbers[number].name))
                continue;
            *numbers[number].value = strtoul(value, NULL, 0);
            known = 1;
        }
        EXPECT(known);
    }
    EXPECT(device_count >= 1 && device_count <= DEVICES_MAX && sync_after > 0);
}

/* While there is no room for a context, waits until another program ends or frees memory. */
static void retain(CUcontext *context, CUdevice device) {
    CUresult result;
    while ((result = cuDevicePrimaryCtxRetain(context, device)) == CUDA_ERROR_OUT_OF_MEMORY) {
        count(result);
        usleep(5000);
    }
    REQUIRE(result);
}

int main(int argument_count, char **arguments) {
    EXPECT(argument_count >= 2);
    int file = open(arguments[1], O_RDWR | O_CLOEXEC);
    EXPECT(file >= 0);
    counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT(counts != MAP_FAILED);
    close(file);
    read_arguments(argument_count, arguments);
    seed = seed * 2 + 1;
    REQUIRE(cuInit(0));
    for (unsigned long device = 0; device < device_count; device++) {
        CUdevice handle;
        REQUIRE(cuDeviceGet(&handle, (int)device));
        retain(&contexts[device], handle);
        REQUIRE(cuCtxSetCurrent(contexts[device]));
        kernels[device] = spin_kernel();
    }
    for (unsigned long step = 1; !steps || step <= steps; step++) {
        int device = (int)pick(device_count);
        count(cuCtxSetCurrent(contexts[device]));
        if (bytes_max && (!kernel_ns || pick(4) == 0))
            step_of_memory(device);
        else if (kernel_ns)
            step_of_launch(device);
        if (children && step % children == 0)
            step_of_children();
        if (pause_us)
            usleep(pick(pause_us));
    }
    for (unsigned long device = 0; device < device_count; device++) {
        count(cuCtxSetCurrent(contexts[device]));
        count(cuCtxSynchronize());
    }
    return 0;
}
