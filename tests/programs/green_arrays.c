/* Makes an array of 40 MiB while a green context is current, and resets the primary context. Then does so once more. */
#include "program.h"

static void make_array(void) {
    CUdevResource sms;
    CUdevResourceDesc description;
    CUgreenCtx green;
    CUcontext context;
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR descriptor = {1024, 10 * 1024, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    use_device();
    REQUIRE(cuDeviceGetDevResource(0, &sms, CU_DEV_RESOURCE_TYPE_SM));
    REQUIRE(cuDevResourceGenerateDesc(&description, &sms, 1));
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    REQUIRE(cuCtxFromGreenCtx(&context, green));
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(cuArrayCreate(&array, &descriptor));
    REQUIRE(cuDevicePrimaryCtxReset(0));
}

int main(void) {
    make_array();
    make_array();
    printf("made twice\n");
    return 0;
}
