/*
 * A random trace of driver calls: every kind of object, in any order, with arguments that are valid most of the time.
 * Prints each call with its result and outputs. Addresses are printed as the number of their allocation.
 *
 *   differential SEED STEPS
 *
 * The same seed makes the same calls as long as the driver gives the same answers, so two runs can be compared line by
 * line. Answers that depend on timing (such as whether work is done) are queried but not printed.
 */
#include "program.h"

#define SLOTS 10
#define PIECE (2 * MIB)
#define RANGE_PIECES 8
#define CHECKED_BYTES 4096
#define MOST_CONTEXTS 1024
#define MOST_STREAMS 4096

enum kind {
    LINEAR, PITCHED, MANAGED, POOLED, FROM_POOL, PINNED, REGISTERED, ARRAY, MIPMAP, PHYSICAL, RANGE, MAPPED,
    STREAM, EVENT, GRAPH, EXECUTABLE, CONTEXT, POOL, KINDS
};

/*
 * An object that the trace has made. It stays in the list after its end, because the driver must report an error for a
 * second release.
 */
struct object {
    uint64_t handle;
    size_t bytes;
    unsigned number;
};

static struct object objects[KINDS][SLOTS];
static unsigned made;
static uint64_t state;
static CUfunction kernel;
static int devices;
/* All contexts ever made. All work in them must end before results are read. */
static CUcontext contexts_made[MOST_CONTEXTS];
static unsigned context_count;
static CUstream capturing;
/* The context of the capturing stream. */
static CUcontext capturing_in;
static unsigned char buffer[CHECKED_BYTES];
static unsigned char own_memory[SLOTS][2 * CHECKED_BYTES] __attribute__((aligned(4096)));

/* splitmix64 */
static uint64_t draw(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static unsigned below(unsigned bound) {
    return draw() % bound;
}

/* True with probability 1 / `times`. */
static int rarely(unsigned times) {
    return below(times) == 0;
}

static CUresult last;

static CUresult report(const char *function, CUresult result) {
    printf(" %s=%d", function, result);
    return last = result;
}

/* Calls a function and prints the result. */
#define CALL(function, ...) report(#function, function(__VA_ARGS__))

static struct object *some(enum kind kind) {
    return &objects[kind][below(SLOTS)];
}

/* A handle of this kind: usually a valid one, sometimes one of an ended object, or null. */
static uint64_t handle(enum kind kind) {
    struct object *object = NULL;
    for (int i = 0; i < 8 && (!object || !object->handle); i++)
        object = some(kind);
    if (rarely(40))
        return 0;
    printf(" %u", object->number);
    return object->handle;
}

#define H(type, kind) ((type)handle(kind))

/* Stores the object that a call has made. An older object in the slot is forgotten but not released. */
static void keep(enum kind kind, uint64_t value, size_t bytes) {
    if (last != CUDA_SUCCESS)
        return;
    struct object *place = some(kind);
    if (kind == CONTEXT) {
        EXPECT(context_count < MOST_CONTEXTS);
        contexts_made[context_count++] = (CUcontext)value;
        if (place == objects[CONTEXT])
            place++; /* The first is the primary context, which stays. */
    }
    *place = (struct object){value, bytes, ++made};
    printf(" -> %u", made);
}

static size_t size(void) {
    static const size_t sizes[] = {0, 1, 511, 512, 513, 4096, 65536, MIB - 1, MIB, PIECE, 3 * PIECE + 1, 16 * MIB};
    return rarely(4) ? below(1 << 20) : sizes[below(sizeof sizes / sizeof *sizes)];
}

/* A stream: one of those made, or a default stream. */
static CUstream stream(void) {
    static const uintptr_t fixed[] = {0, 1, 2};
    if (rarely(4)) {
        unsigned which = below(3);
        printf(" stream %u", which);
        return (CUstream)fixed[which];
    }
    return H(CUstream, STREAM);
}

static uint64_t hash(const unsigned char *bytes, size_t count) {
    uint64_t value = 0xcbf29ce484222325;
    for (size_t i = 0; i < count; i++)
        value = (value ^ bytes[i]) * 0x100000001b3;
    return value;
}

/*
 * Waits for all work, so that later results do not depend on timing. Not during a capture, which this would invalidate:
 * then the caller usually leaves its calls out.
 */
static int settled(void) {
    if (capturing && !rarely(10))
        return 0;
    for (unsigned i = 0; i < context_count; i++) {
        CUcontext context = contexts_made[i];
        if (cuCtxPushCurrent(context) == CUDA_SUCCESS) {
            cuCtxSynchronize();
            cuCtxPopCurrent(&context);
        }
    }
    return CALL(cuCtxSynchronize) == CUDA_SUCCESS;
}

/* Device memory that can be written and read. */
static struct object *memory(void) {
    static const enum kind kinds[] = {LINEAR, LINEAR, PITCHED, MANAGED, POOLED, FROM_POOL};
    enum kind kind = kinds[below(6)];
    struct object *object = some(kind);
    for (int i = 0; i < 8 && object->bytes < 2; i++)
        object = some(kind);
    printf(" %u", object->number);
    return object;
}

static size_t part(const struct object *object) {
    return object->bytes < CHECKED_BYTES ? object->bytes : CHECKED_BYTES;
}

static void allocate(void) {
    CUdeviceptr address = 0;
    void *host = NULL;
    size_t bytes = size(), pitch = 0;
    printf(" %zu", bytes);
    switch (below(7)) {
    case 0:
    case 1:
        CALL(cuMemAlloc, &address, bytes);
        keep(LINEAR, address, bytes);
        break;
    case 2: {
        size_t rows = below(20);
        CALL(cuMemAllocPitch, &address, &pitch, bytes % 40000, rows, 4u << below(3));
        printf(" pitch %zu", last ? 0 : pitch);
        keep(PITCHED, address, pitch * rows);
        break;
    }
    case 3:
        CALL(cuMemAllocManaged, &address, bytes, rarely(10) ? 7 : CU_MEM_ATTACH_GLOBAL);
        keep(MANAGED, address, bytes);
        break;
    case 4:
        CALL(cuMemHostAlloc, &host, bytes, below(8));
        keep(PINNED, (uintptr_t)host, bytes);
        break;
    case 5: {
        unsigned place = below(SLOTS);
        host = own_memory[place] + below(CHECKED_BYTES);
        bytes = 1 + below(CHECKED_BYTES);
        CALL(cuMemHostRegister, host, bytes, below(4));
        keep(REGISTERED, (uintptr_t)host, bytes);
        break;
    }
    default:
        if (capturing) {
            /* This allocates memory of the captured graph. */
            CALL(cuMemAllocAsync, &address, bytes, capturing);
            break;
        }
        if (!settled())
            break;
        if (rarely(2)) {
            CALL(cuMemAllocAsync, &address, bytes, stream());
            keep(POOLED, address, bytes);
        } else {
            CALL(cuMemAllocFromPoolAsync, &address, bytes, H(CUmemoryPool, POOL), stream());
            keep(FROM_POOL, address, bytes);
        }
    }
}

static void give_back(void) {
    struct object *object;
    /* During a capture, memory to free does not come from a pool that may be destroyed before the graph runs. */
    enum kind pooled = capturing || rarely(2) ? POOLED : FROM_POOL;
    switch (below(6)) {
    case 0:
    case 1:
        CALL(cuMemFree, H(CUdeviceptr, below(POOLED)) + (rarely(20) ? 256 : 0));
        break;
    case 2:
        /* A second release comes at once and not later, because host addresses are reused by other mappings. */
        object = some(rarely(10) ? REGISTERED : PINNED);
        printf(" %u", object->number);
        if (CALL(cuMemFreeHost, (void *)object->handle) == CUDA_SUCCESS) {
            CALL(cuMemFreeHost, (void *)object->handle);
            object->handle = 0;
        }
        break;
    case 3:
        CALL(cuMemHostUnregister, H(void *, REGISTERED));
        break;
    case 4:
        if (settled())
            CALL(cuMemFree, H(CUdeviceptr, pooled));
        break;
    default:
        /* During a capture only in the capturing stream; otherwise the free would happen at an unknown time. */
        CALL(cuMemFreeAsync, H(CUdeviceptr, rarely(4) ? below(POOLED) : pooled), capturing ? capturing : stream());
        settled();
    }
}

static void array(void) {
    CUarray flat = NULL;
    CUmipmappedArray levels = NULL;
    CUDA_ARRAY_DESCRIPTOR two = {1 + below(300), below(300), 1u << below(5), 1u << below(3)};
    CUDA_ARRAY3D_DESCRIPTOR three = {1 + below(100), below(100), below(20), 1u << below(5), 1u << below(3), below(3)};
    switch (below(4)) {
    case 0:
        CALL(cuArrayCreate, &flat, &two);
        keep(ARRAY, (uintptr_t)flat, 0);
        break;
    case 1:
        CALL(cuArray3DCreate, &flat, &three);
        keep(ARRAY, (uintptr_t)flat, 0);
        break;
    case 2:
        CALL(cuMipmappedArrayCreate, &levels, &three, below(8));
        keep(MIPMAP, (uintptr_t)levels, 0);
        break;
    default:
        if (rarely(2))
            CALL(cuArrayDestroy, H(CUarray, ARRAY));
        else
            CALL(cuMipmappedArrayDestroy, H(CUmipmappedArray, MIPMAP));
    }
}

static void map(void) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, rarely(20) ? 5 : below(devices)}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, below(devices)}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle physical = 0;
    CUdeviceptr address = 0;
    struct object *range = some(RANGE), *object = some(PHYSICAL);
    CUdeviceptr place = range->handle + below(RANGE_PIECES) * PIECE;
    size_t bytes = (1 + below(3)) * PIECE;
    switch (below(10)) {
    case 0:
        bytes += rarely(8);
        CALL(cuMemCreate, &physical, bytes, &properties, 0);
        keep(PHYSICAL, physical, bytes);
        break;
    case 1:
        CALL(cuMemRelease, H(CUmemGenericAllocationHandle, PHYSICAL));
        break;
    case 2:
        CALL(cuMemAddressReserve, &address, RANGE_PIECES * PIECE, 0, 0, 0);
        keep(RANGE, address, RANGE_PIECES * PIECE);
        break;
    case 3:
        /* The addresses belong to the process and are reused by other mappings. */
        if (rarely(3) && CALL(cuMemAddressFree, range->handle, range->bytes) == CUDA_SUCCESS) {
            CALL(cuMemAddressFree, range->handle, range->bytes);
            for (int i = 0; i < SLOTS; i++)
                if (objects[MAPPED][i].handle - range->handle < range->bytes)
                    objects[MAPPED][i].handle = 0;
            range->handle = 0;
        }
        break;
    case 4:
        object = some(MAPPED);
        if (rarely(6))
            *object = (struct object){place, bytes, 0};
        printf(" %u", object->number);
        if (settled())
            CALL(cuMemUnmap, object->handle, object->bytes);
        break;
    case 5:
        object = some(MAPPED);
        printf(" %u", object->number);
        CALL(cuMemRetainAllocationHandle, &physical, (void *)(object->handle + below(2) * 4096));
        keep(PHYSICAL, physical, object->bytes);
        break;
    default:
        for (int i = 0; i < 8 && !(range->handle && object->handle); i++)
            range = some(RANGE), object = some(PHYSICAL);
        place = range->handle + below(rarely(8) ? RANGE_PIECES : RANGE_PIECES / 2) * PIECE;
        bytes = rarely(8) ? bytes : object->bytes;
        printf(" %u %u", range->number, object->number);
        CALL(cuMemMap, place, bytes, 0, object->handle, 0);
        keep(MAPPED, place, bytes);
        CALL(cuMemSetAccess, place, bytes, &access, 1);
        if (last == CUDA_SUCCESS) {
            CALL(cuMemsetD8, place, below(256), bytes);
            CALL(cuMemcpyDtoH, buffer, place + bytes - CHECKED_BYTES, CHECKED_BYTES);
            printf(" %llx", last ? 0 : (unsigned long long)hash(buffer, CHECKED_BYTES));
        }
    }
}

static void copy(void) {
    struct object *to = memory(), *from = memory();
    size_t bytes = part(to) < part(from) ? part(to) : part(from);
    /* Two copies in two streams run in any order, and then the memory's contents are undefined. */
    if (!settled() && !capturing)
        return;
    switch (below(7)) {
    case 0:
        memset(buffer, below(256), sizeof buffer);
        CALL(cuMemcpyHtoD, to->handle, buffer, part(to));
        break;
    case 1:
        CALL(cuMemsetD8, to->handle, below(256), to->bytes + rarely(30));
        break;
    case 2:
        CALL(cuMemsetD8Async, to->handle, below(256), to->bytes, capturing ? capturing : stream());
        break;
    case 3:
        CALL(cuMemcpyDtoD, to->handle, from->handle, bytes);
        break;
    case 4:
        CALL(cuMemcpyDtoDAsync, to->handle, from->handle, bytes, capturing ? capturing : stream());
        break;
    default:
        CALL(cuMemcpyDtoH, buffer, from->handle, part(from));
        printf(" %llx", last ? 0 : (unsigned long long)hash(buffer, part(from)));
    }
}

static void mark(void *called) {
    __atomic_store_n((int *)called, 1, __ATOMIC_RELEASE);
}

static void launch(void) {
    static int called[64];
    static unsigned calls;
    uint64_t duration_ns = below(20000);
    void *parameters[] = {&duration_ns};
    CUstream where;
    switch (below(8)) {
    case 0:
        CALL(cuLaunchKernel, kernel, below(2), 1, 1, rarely(2) ? 4096 : 32, 1, 1, 0, stream(), parameters, NULL);
        break;
    case 1: {
        where = stream();
        /* Each call has its own flag, which is reused only when the earlier call is long done. */
        int *flag = &called[calls++ % 64];
        *flag = 0;
        CALL(cuLaunchHostFunc, where, mark, flag);
        if (settled())
            printf(" called %d", __atomic_load_n(flag, __ATOMIC_ACQUIRE));
        break;
    }
    default:
        where = stream();
        for (unsigned i = below(rarely(5) ? 300 : 10); i; i--)
            if (CALL(cuLaunchKernel, kernel, 1 + below(300), 1, 1, 32, 1, 1, 0, where, parameters, NULL))
                break;
    }
}

static CUcontext current_context(void) {
    CUcontext context = NULL;
    cuCtxGetCurrent(&context);
    return context;
}

/* The context of each stream made. Handles are reused, so the last entry counts. */
static struct {
    CUstream stream;
    CUcontext context;
} streams_made[MOST_STREAMS];
static unsigned stream_count;

static void note_stream(CUstream stream) {
    EXPECT(stream_count < MOST_STREAMS);
    streams_made[stream_count].stream = stream;
    streams_made[stream_count++].context = current_context();
}

static CUcontext context_of_stream(CUstream stream) {
    for (unsigned i = stream_count; i-- > 0;)
        if (streams_made[i].stream == stream)
            return streams_made[i].context;
    return NULL;
}

/* A stream ends with its context. Using it afterwards ends the program, on NVIDIA's driver and on the simulated one. */
static void forget_streams_of(CUcontext ended) {
    for (unsigned i = 0; i < SLOTS; i++)
        if (context_of_stream((CUstream)objects[STREAM][i].handle) == ended)
            objects[STREAM][i].handle = 0;
    if (capturing_in == ended)
        capturing = NULL;
}

static void streams(void) {
    CUstream new_stream = NULL;
    CUevent event = NULL;
    float elapsed;
    switch (below(10)) {
    case 0:
    case 1:
        CALL(cuStreamCreate, &new_stream, rarely(15) ? 9 : below(2));
        keep(STREAM, (uintptr_t)new_stream, 0);
        if (last == CUDA_SUCCESS)
            note_stream(new_stream);
        break;
    case 2:
        if (rarely(3))
            CALL(cuStreamDestroy, H(CUstream, STREAM));
        break;
    case 3:
        CALL(cuStreamSynchronize, stream());
        break;
    case 4:
        CALL(cuEventCreate, &event, below(4));
        keep(EVENT, (uintptr_t)event, 0);
        break;
    case 5:
        CALL(cuEventRecord, H(CUevent, EVENT), stream());
        break;
    case 6:
        CALL(cuStreamWaitEvent, stream(), H(CUevent, EVENT), 0);
        break;
    case 7:
        CALL(cuEventSynchronize, H(CUevent, EVENT));
        break;
    case 8:
        if (!settled())
            break;
        CALL(cuEventQuery, H(CUevent, EVENT));
        CALL(cuStreamQuery, stream());
        CALL(cuEventElapsedTime, &elapsed, H(CUevent, EVENT), H(CUevent, EVENT));
        break;
    default:
        if (rarely(3))
            CALL(cuEventDestroy, H(CUevent, EVENT));
    }
}

static void graphs(void) {
    CUstream captured;
    CUgraph graph = NULL;
    CUgraphExec executable = NULL;
    CUgraphNode node = NULL;
    unsigned mode = below(3), status = 0;
    size_t nodes = 0;
    uint64_t duration_ns = 1000;
    void *parameters[] = {&duration_ns};
    CUDA_KERNEL_NODE_PARAMS kernel_node = {
        .function = kernel, .grid = {1, 1, 1}, .block = {32, 1, 1}, .parameters = parameters};
    switch (below(12)) {
    case 0:
    case 1:
        captured = H(CUstream, STREAM);
        /* One capture at a time, so that it is known when none is active. */
        if (!capturing && CALL(cuStreamBeginCapture, captured, mode) == CUDA_SUCCESS)
            capturing = captured, capturing_in = context_of_stream(captured);
        break;
    case 2:
    case 3:
    case 4:
        if (!capturing && !rarely(10))
            break;
        captured = capturing;
        CALL(cuStreamIsCapturing, captured, &status);
        printf(" status %u", status);
        if (CALL(cuStreamEndCapture, captured, &graph) == CUDA_SUCCESS)
            keep(GRAPH, (uintptr_t)graph, 0);
        CALL(cuStreamIsCapturing, captured, &status);
        if (last == CUDA_SUCCESS ? status == 0 : last != CUDA_ERROR_INVALID_CONTEXT)
            capturing = NULL;
        break;
    case 5:
        CALL(cuGraphCreate, &graph, rarely(20));
        keep(GRAPH, (uintptr_t)graph, 0);
        break;
    case 6:
        graph = H(CUgraph, GRAPH);
        CALL(cuGraphAddKernelNode, &node, graph, NULL, 0, &kernel_node);
        CALL(cuGraphAddEmptyNode, &node, graph, last ? NULL : &node, last ? 0 : 1);
        break;
    case 7:
        CALL(cuGraphGetNodes, H(CUgraph, GRAPH), NULL, &nodes);
        printf(" %zu nodes", last ? 0 : nodes);
        break;
    case 8:
        CALL(cuGraphInstantiateWithFlags, &executable, H(CUgraph, GRAPH), 0);
        keep(EXECUTABLE, (uintptr_t)executable, 0);
        break;
    case 9:
        if (rarely(3))
            CALL(cuGraphExecDestroy, H(CUgraphExec, EXECUTABLE));
        else if (rarely(2))
            CALL(cuGraphDestroy, H(CUgraph, GRAPH));
        else {
            CALL(cuGraphClone, &graph, H(CUgraph, GRAPH));
            keep(GRAPH, (uintptr_t)graph, 0);
        }
        break;
    case 10:
        CALL(cuThreadExchangeStreamCaptureMode, &mode);
        printf(" mode %u", mode);
        break;
    default:
        if (settled() || capturing)
            CALL(cuGraphLaunch, H(CUgraphExec, EXECUTABLE), stream());
    }
}

static void contexts(void) {
    CUcontext context = NULL;
    CUdevice device = -1;
    CUmemoryPool pool = NULL;
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, below(devices)}};
    uint64_t kept_bytes = below(3) * PIECE;
    switch (below(9)) {
    case 0:
        if (rarely(3)) {
            CALL(cuCtxCreate, &context, rarely(10) ? 99 : 0, below(devices));
            keep(CONTEXT, (uintptr_t)context, 0);
        }
        break;
    case 1:
        if (rarely(6)) {
            CUcontext ended = H(CUcontext, CONTEXT);
            if (CALL(cuCtxDestroy, ended) == CUDA_SUCCESS)
                forget_streams_of(ended);
        }
        break;
    case 2:
        CALL(cuCtxPushCurrent, H(CUcontext, CONTEXT));
        break;
    case 3:
        CALL(cuCtxPopCurrent, &context);
        break;
    case 4:
        CALL(cuCtxSetCurrent, H(CUcontext, CONTEXT));
        break;
    case 5:
        CALL(cuCtxGetDevice, &device);
        CALL(cuCtxGetCurrent, &context);
        printf(" device %d, context %s", device, context ? "yes" : "no");
        break;
    case 6:
        CALL(cuMemPoolCreate, &pool, &properties);
        keep(POOL, (uintptr_t)pool, 0);
        break;
    case 7:
        CALL(cuMemPoolSetAttribute, H(CUmemoryPool, POOL), 4, &kept_bytes);
        break;
    default:
        if (!settled())
            break;
        CALL(cuMemPoolTrimTo, H(CUmemoryPool, POOL), kept_bytes);
        if (rarely(3))
            CALL(cuMemPoolDestroy, H(CUmemoryPool, POOL));
    }
}

static void look(void) {
    static const struct {
        const char *name;
        int version;
    } names[] = {{"cuMemAlloc", 12000},     {"cuMemAlloc", 2000},     {"cuMemFree", 3020},
                 {"cuLaunchKernel", 4000},  {"cuLaunchKernel", 3000}, {"cuNothing", 12000},
                 {"cuInit", 13000},         {"cuMemGetInfo", 2000},   {"cuGraphLaunch", 9000},
                 {"cuGraphLaunch", 10000},  {"cuCtxCreate", 12050},   {"cuMemAlloc_v2", 12000},
                 {"", 12000},               {"cuGetProcAddress", 12000}, {"nvmlInit", 12000}};
    static get_proc_address_v2 *look_up;
    CUdeviceptr base = 0;
    size_t free_now = 0, total = 0, bytes = 0;
    uint64_t value = 0;
    void *found = NULL;
    unsigned which, status = 9;
    struct object *object;
    if (!look_up) {
        extern CUresult look_up_v2(const char *, void **, int, uint64_t, unsigned *) __asm__("cuGetProcAddress_v2");
        look_up = look_up_v2;
    }
    switch (below(5)) {
    case 0:
        which = below(sizeof names / sizeof *names);
        CALL(look_up, names[which].name, &found, names[which].version, below(4), &status);
        printf(" %s %d: %s, %u", names[which].name, names[which].version, found ? "found" : "NULL", status);
        break;
    case 1:
        if (settled() && CALL(cuMemGetInfo, &free_now, &total) == CUDA_SUCCESS)
            printf(" %zu of %zu", free_now, total);
        break;
    case 2:
        object = memory();
        CALL(cuMemGetAddressRange, &base, &bytes, object->handle + object->bytes / 2);
        printf(" %lld %zu", last ? 0 : (long long)(object->handle - base), last ? 0 : bytes);
        break;
    case 3:
        object = memory();
        which = 1 + below(9);
        CALL(cuPointerGetAttribute, &value, which, object->handle);
        /* The memory's kind, whether it is managed, and its device are numbers; the others are addresses. */
        printf(" %u: %d", which, last == CUDA_SUCCESS && (which == 2 || which == 8 || which == 9) ? (int)value : 0);
        break;
    default:
        if (!settled())
            break;
        which = 5 + below(4);
        CALL(cuMemPoolGetAttribute, H(CUmemoryPool, POOL), which, &value);
        printf(" %u: %llu", which, last ? 0 : (unsigned long long)value);
    }
}

int main(int count_of_arguments, char **arguments) {
    static void (*const operations[])(void) = {
        allocate, allocate, allocate, give_back, give_back, array,  map,    map,      copy, copy,
        copy,     launch,   launch,   streams,   streams,   graphs, graphs, contexts, look,
    };
    CUmemoryPool pool;
    EXPECT(count_of_arguments == 3);
    state = strtoull(arguments[1], NULL, 10);
    unsigned long steps = strtoul(arguments[2], NULL, 10);
    contexts_made[context_count++] = use_device();
    objects[CONTEXT][0] = (struct object){(uintptr_t)contexts_made[0], 0, 0};
    kernel = spin_kernel();
    REQUIRE(cuDeviceGetCount(&devices));
    REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0));
    objects[POOL][0] = (struct object){(uintptr_t)pool, 0, 0};
    for (unsigned long step = 0; step < steps; step++) {
        unsigned which = below(sizeof operations / sizeof *operations);
        printf("%lu:", step);
        operations[which]();
        /* Most calls fail without a context, so this usually makes one current. */
        if (last == CUDA_ERROR_INVALID_CONTEXT && !rarely(4))
            CALL(cuCtxSetCurrent, (CUcontext)objects[CONTEXT][0].handle);
        printf("\n");
    }
    return 0;
}
