/*
 * Registers memory with UCX (`ucp_mem_map`): host memory, memory of the device that the program allocates, and such
 * memory that UCX allocates. Prints what UCX makes of each. The device has 64 MiB for the program.
 */
#include "program.h"

#include <ucp/api/ucp.h>

static ucp_context_h ucx;
static size_t host_key_bytes;

/* Registers `bytes` at `address`, or memory of the device that UCX allocates if the address is null. */
static void map(const char *what, void *address, size_t bytes) {
    ucp_mem_map_params_t wanted = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = address,
        .length = bytes,
    };
    if (!address) {
        wanted.field_mask |= UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
        wanted.flags = UCP_MEM_MAP_ALLOCATE;
        wanted.memory_type = UCS_MEMORY_TYPE_CUDA;
    }
    ucp_mem_h memory;
    ucs_status_t status = ucp_mem_map(ucx, &wanted, &memory);
    printf("%s: %s", what, ucs_status_string(status));
    if (status == UCS_OK) {
        ucp_mem_attr_t found = {.field_mask = UCP_MEM_ATTR_FIELD_MEM_TYPE};
        void *key;
        size_t key_bytes;
        EXPECT(ucp_mem_query(memory, &found) == UCS_OK);
        EXPECT(ucp_rkey_pack(ucx, memory, &key, &key_bytes) == UCS_OK);
        ucp_rkey_buffer_release(key);
        EXPECT(ucp_mem_unmap(ucx, memory) == UCS_OK);
        if (found.mem_type == UCS_MEMORY_TYPE_HOST)
            host_key_bytes = key_bytes;
        /* The key of memory of a device has an IPC handle. */
        printf(", %s, %s key", found.mem_type == UCS_MEMORY_TYPE_CUDA ? "device" : "host",
               key_bytes > host_key_bytes ? "longer" : "short");
    }
    printf("\n");
}

int main(void) {
    ucp_params_t wanted = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA};
    CUdeviceptr address;
    char on_stack[4096];
    use_device();
    EXPECT(ucp_init(&wanted, NULL, &ucx) == UCS_OK);
    /* UCX watches allocations from now on. */
    map("host memory", on_stack, sizeof on_stack);
    REQUIRE(cuMemAlloc(&address, 48 * MIB));
    map("cuMemAlloc", (void *)address, 48 * MIB);
    map("by UCX", NULL, 16 * MIB);
    map("by UCX, too much", NULL, 32 * MIB);
    REQUIRE(cuMemFree(address));
    map("by UCX, when there is room", NULL, 32 * MIB);
    ucp_cleanup(ucx);
    return 0;
}
