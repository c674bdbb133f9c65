"""A kernel of Triton's, for check_frameworks.py."""

import torch
import triton
import triton.language as tl


@triton.jit
def add(left, right, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    tl.store(out + places, tl.load(left + places, mask=mask) + tl.load(right + places, mask=mask), mask=mask)


left, right = torch.randn(5000, device="cuda"), torch.randn(5000, device="cuda")
out = torch.empty_like(left)
add[(triton.cdiv(5000, 1024),)](left, right, out, 5000, BLOCK=1024)
assert torch.equal(out, left + right)
