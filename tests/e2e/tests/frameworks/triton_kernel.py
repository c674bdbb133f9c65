"""A kernel of Triton's in a context that PyTorch has not made. Triton wants its source in a file."""

import triton
import triton.language as tl
from cuda.bindings import driver
from triton.backends.nvidia.driver import CudaDriver


@triton.jit
def add(left, right, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    tl.store(out + places, tl.load(left + places, mask=mask) + tl.load(right + places, mask=mask), mask=mask)


def made(answer):
    error, *values = answer
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error)
    return values[0] if values else None


class Memory:
    """Device memory, as Triton wants it from a framework."""

    dtype = "float32"

    def __init__(self, count):
        self.address = int(made(driver.cuMemAlloc(4 * count)))

    def data_ptr(self):
        return self.address


made(driver.cuInit(0))
made(driver.cuCtxSetCurrent(made(driver.cuDevicePrimaryCtxRetain(0))))
# Triton asks PyTorch for the device and the stream, if PyTorch is imported, which Triton itself does.
own = CudaDriver()
own.get_current_device = lambda: 0
own.set_current_device = lambda device: None
own.get_current_stream = lambda device: 0
own.get_device_capability = lambda device: (9, 0)
triton.runtime.driver.set_active(own)

vectors = [Memory(5000) for _ in range(3)]
compiled = add[(triton.cdiv(5000, 1024),)](*vectors, 5000, BLOCK=1024)
made(driver.cuCtxSynchronize())
print(f"triton {triton.__version__}: {compiled.name} has run")
