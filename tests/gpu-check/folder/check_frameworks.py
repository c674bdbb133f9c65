"""One framework or tool on one device.

Called by aliquot-gpu-check as `check_frameworks.py SUBJECT LIMIT_BYTES CHECK`, where LIMIT_BYTES is the memory limit of the slice
(0: there is none) and CHECK the calling program. The last line of the output is JSON: the findings, or the reason why the subject
cannot be tried here.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

findings = []
# Programs that have not ended by then count as hanging.
TIMEOUT_SECONDS = 120


def expect(what, holds, saw=""):
    findings.append({"what": what, "verdict": "holds" if holds else "fails", "saw": str(saw)[-500:]})


class Missing(Exception):
    pass


def module(name):
    if importlib.util.find_spec(name) is None:
        raise Missing(f"the Python package {name} is not installed")


def tool(name):
    path = shutil.which(name)
    if path is None:
        raise Missing(f"{name} is not installed")
    return path


def jax(limit_bytes):
    module("jax")
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax.numpy

    product = jax.numpy.ones((512, 512)) @ jax.numpy.ones((512, 512))
    expect("JAX multiplies on the device", float(product[0, 0]) == 512.0 and product.devices().pop().platform == "gpu")
    if limit_bytes:
        limit = product.devices().pop().memory_stats()["bytes_limit"]
        expect("JAX plans with the slice's memory", limit <= limit_bytes, f"{limit} bytes, the slice has {limit_bytes}")


def cupy(limit_bytes):
    module("cupy")
    import cupy

    expect("CuPy computes", float(cupy.arange(1000, dtype=cupy.float64).sum()) == 499500.0)
    if limit_bytes:
        total = cupy.cuda.runtime.memGetInfo()[1]
        expect("CuPy sees the slice's memory", total == limit_bytes, f"{total} bytes, the slice has {limit_bytes}")
        try:
            cupy.empty(limit_bytes + 1, dtype=cupy.uint8)
            expect("CuPy gets no more than the slice has", False)
        except cupy.cuda.memory.OutOfMemoryError:
            expect("CuPy gets no more than the slice has", True)


def triton(_):
    module("triton")
    module("torch")
    # Triton wants a kernel's source in a file.
    path = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "check_triton.py")
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    expect("a kernel of Triton's runs", ended.returncode == 0, ended.stderr)


def numba(_):
    module("numba")
    module("numba_cuda")
    import numpy
    from numba import cuda

    @cuda.jit
    def increment(array):
        index = cuda.grid(1)
        if index < array.size:
            array[index] += 1

    array = cuda.to_device(numpy.zeros(1000))
    increment[8, 128](array)
    expect("a kernel of Numba's runs", bool((array.copy_to_host() == 1).all()))


def nvidia_smi(limit_bytes):
    query = [tool("nvidia-smi"), "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    ended = subprocess.run(query, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    expect("nvidia-smi runs", ended.returncode == 0, ended.stderr or ended.stdout)
    if limit_bytes and ended.returncode == 0:
        total = int(ended.stdout.split()[0])
        expect("nvidia-smi shows the slice", total == limit_bytes >> 20, f"{total} MiB, the slice has {limit_bytes >> 20}")


def under(*command):
    """The check's own launches, run by a tool."""
    limits = ["--memory-bytes", "0", "--core-percent", "0", "--context-bytes", "0"]
    whole = [*command, sys.argv[3], "worker", "case", "launches", "--way", "bare", *limits]
    ended = subprocess.run(whole, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    expect(f"{os.path.basename(command[0])} runs a program", ended.returncode == 0, ended.stdout + ended.stderr)


def compute_sanitizer(_):
    under(tool("compute-sanitizer"), "--tool", "memcheck")


def ncu(_):
    tool("ncu")
    raise Missing("ncu does not run in a slice, which is known: it puts a library of its own in front of the driver")


def main():
    subject, limit_bytes = sys.argv[1], int(sys.argv[2])
    missing = ""
    try:
        globals()[subject.replace("-", "_")](limit_bytes)
    except Missing as error:
        missing = str(error)
    print(json.dumps({"missing": missing, "findings": findings}))


main()
