"""How far PyTorch comes: each step, and what became of it."""

import warnings

warnings.simplefilter("ignore")

import torch


def step(name, call):
    try:
        print(f"{name}: {call()!r}")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error).replace(chr(10), ' ')}")


print(f"torch {torch.__version__} for CUDA {torch.version.cuda}")
step("device_count", torch.cuda.device_count)
step("utilization(0)", lambda: torch.cuda.utilization(0))
step("is_available", torch.cuda.is_available)
step("init", torch.cuda.init)
step("zeros", lambda: torch.zeros(4, device="cuda"))
step("mem_get_info", torch.cuda.mem_get_info)
step("pin_memory", lambda: torch.zeros(4).pin_memory())
