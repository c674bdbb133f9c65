/*
 * An NVML in front of another one, to which it is linked. It gives no utilisation of processes, as for devices in MIG
 * mode.
 */
#include <stddef.h>

enum { NVML_ERROR_NOT_SUPPORTED = 3 };

int nvmlDeviceGetProcessUtilization(void *device, void *samples, unsigned *count, unsigned long long since_us) {
    (void)device, (void)samples, (void)count, (void)since_us;
    return NVML_ERROR_NOT_SUPPORTED;
}

int nvmlDeviceGetProcessesUtilizationInfo(void *device, void *samples) {
    (void)device, (void)samples;
    return NVML_ERROR_NOT_SUPPORTED;
}
