"""PyTorch on one device: a training loop, the memory cap, CUDA graphs, and other usual work of programs.

Called by aliquot-gpu-check as `check_torch.py WAY SECONDS LIMIT_BYTES`, where WAY is bare, unlimited or limited. LIMIT_BYTES is the
memory limit of the limited slice: the cap is judged by this number, never by PyTorch's own figures. The last line of the output is
JSON: the findings, the answers that must be the same in all three ways, and the work in a second: training steps launched
one by one, the same as CUDA graphs, sums over much memory, which keep the device busy even if the host is slow, and blocks of
memory that two streams use.
"""

import json
import os
import subprocess
import sys
import time

# Without this cuBLAS may add in another order each time, and losses could not be compared.
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch  # noqa: E402

TRAINING_STEPS = 50
CHUNK_BYTES = 256 << 20

findings = []
answers = []


def expect(what, holds, saw=""):
    findings.append({"what": what, "verdict": "holds" if holds else "fails", "saw": str(saw)})


def model_and_data():
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
    data = torch.randn(2048, 1024, device="cuda")
    return model, data


def train(steps):
    """The loss after so many steps from the same start."""
    model, data = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss = None
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(data), data)
        loss.backward()
        optimizer.step()
    return loss.item()


def steps_per_second(seconds):
    train(5)
    torch.cuda.synchronize()
    start = time.monotonic()
    steps = 0
    while time.monotonic() - start < seconds:
        train(TRAINING_STEPS)
        steps += TRAINING_STEPS
    torch.cuda.synchronize()
    return steps / (time.monotonic() - start)


def graph_steps_per_second(seconds):
    """The same step, captured once and launched as a graph."""
    model, data = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        # Gradients are zeroed in place: a captured step must find them where they were.
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.mse_loss(model(data), data).backward()
        optimizer.step()

    # Libraries set themselves up at the first steps, which a capture would refuse.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    torch.cuda.synchronize()
    start = time.monotonic()
    steps = 0
    while time.monotonic() - start < seconds:
        for _ in range(TRAINING_STEPS):
            graph.replay()
        torch.cuda.synchronize()
        steps += TRAINING_STEPS
    return steps / (time.monotonic() - start)


def check_graph():
    left = torch.randn(512, 512, device="cuda")
    expected = left @ left
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        left @ left
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = left @ left
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    expect("a CUDA graph gives the same product as eager execution", torch.equal(product, expected))


def sweeps_per_second(seconds):
    """Sums over much memory: the next ones are queued long before the device is done with the last.

    Products of large matrices would not do: they take so much power that the device slows its clock down, and a slice that
    rests half of the time gets more than half of them done (56.7 % on an H100).
    """
    large = torch.zeros(64 << 20, device="cuda")
    done = [torch.cuda.Event() for _ in range(4)]
    torch.cuda.synchronize()
    start = time.monotonic()
    sweeps = 0
    while time.monotonic() - start < seconds:
        for event in done:
            event.synchronize()
            for _ in range(20):
                large.add_(1)
            event.record()
            sweeps += 20
    torch.cuda.synchronize()
    return sweeps / (time.monotonic() - start)


def check_cap(limit_bytes):
    total = torch.cuda.mem_get_info()[1]
    expect("PyTorch sees the slice's memory as the device's", total == limit_bytes, f"{total} bytes, the slice has {limit_bytes}")
    properties = torch.cuda.get_device_properties(0).total_memory
    expect("in the device's properties, too", properties == limit_bytes, f"{properties} bytes, the slice has {limit_bytes}")
    chunks = []
    try:
        while len(chunks) * CHUNK_BYTES <= limit_bytes:
            chunks.append(torch.zeros(CHUNK_BYTES, dtype=torch.uint8, device="cuda"))
        expect("beyond the cap torch.cuda.OutOfMemoryError is raised", False, f"{len(chunks)} chunks were given")
    except torch.cuda.OutOfMemoryError:
        held = len(chunks) * CHUNK_BYTES
        expect("beyond the cap torch.cuda.OutOfMemoryError is raised", held <= limit_bytes, f"after {held >> 20} MiB")
        # The context, the libraries' modules and what PyTorch keeps count against the slice.
        expect("and not long before the cap", held > limit_bytes * 3 // 4, f"{held} bytes given of {limit_bytes}")
    chunks.clear()
    torch.cuda.empty_cache()
    loss = train(TRAINING_STEPS)
    expect("training goes on afterwards", loss == loss, f"loss {loss}")


def check_compiled():
    for mode in ("default", "reduce-overhead"):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).cuda()
        data = torch.randn(64, 256, device="cuda")
        expected = model(data)
        try:
            compiled = torch.compile(model, mode=mode)
            for _ in range(4):
                seen = compiled(data).clone()
            torch.cuda.synchronize()
            close = torch.allclose(seen, expected, atol=1e-3, rtol=1e-3)
            expect(f"torch.compile in mode {mode} computes the same", close)
        except Exception as error:  # Whatever it is: it works without the shim.
            expect(f"torch.compile in mode {mode} runs", False, repr(error)[:500])


def shared_blocks_per_second(seconds):
    """Memory that a side stream uses: the allocator asks events until that stream is done with it."""
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    start = time.monotonic()
    blocks = 0
    while time.monotonic() - start < seconds:
        for _ in range(200):
            block = torch.randn(1 << 18, device="cuda")
            with torch.cuda.stream(side):
                block.mul_(2)
            block.record_stream(side)
            del block
        blocks += 200
        torch.cuda.synchronize()
    rate = blocks / (time.monotonic() - start)
    more = torch.cuda.memory_reserved() - reserved
    expect("memory that two streams use is used again", more < 1 << 30, f"{more} bytes more are reserved")
    return rate


def check_workers():
    data = torch.utils.data.DataLoader(list(range(64)), batch_size=8, num_workers=2)
    expect("a DataLoader's forked workers deliver", sum(int(batch.cuda().sum()) for batch in data) == sum(range(64)))


def check_profiler():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.randn(512, 512, device="cuda") @ torch.randn(512, 512, device="cuda")
        torch.cuda.synchronize()
    events = profile.key_averages()
    expect("the profiler sees kernels", len(events) > 0)
    # The attribute's name before PyTorch 2.4 is the second one.
    times = [getattr(event, "device_time_total", 0) or getattr(event, "cuda_time_total", 0) for event in events]
    expect("the profiler sees how long they ran", sum(times) > 0, f"{sum(times)} us")


# Takes memory until there is no more, or twice the limit. Its last line of output is the number of bytes.
FILL = """
import sys
import torch

limit_bytes, chunk_bytes = int(sys.argv[1]), int(sys.argv[2])
x = torch.randn(1 << 20, device="cuda")
for n in range(1, 20):
    y = torch.randn(n << 18, device="cuda")
    del y
torch.cuda.synchronize()
assert x.numel() == 1 << 20
chunks = []
try:
    while limit_bytes and len(chunks) * chunk_bytes <= 2 * limit_bytes:
        chunks.append(torch.zeros(chunk_bytes, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
except torch.cuda.OutOfMemoryError:
    pass
print(len(chunks) * chunk_bytes)
"""


def check_allocators(limit_bytes):
    """Other ways in which PyTorch takes memory, each in a process of its own in the same slice: up to the limit, if there is one."""
    torch.cuda.empty_cache()
    for setting in ("expandable_segments:True", "backend:cudaMallocAsync"):
        environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=setting)
        fill = [sys.executable, "-c", FILL, str(limit_bytes), str(CHUNK_BYTES)]
        ended = subprocess.run(fill, env=environment, capture_output=True, text=True, timeout=120)
        expect(f"PyTorch runs with {setting}", ended.returncode == 0, ended.stderr[-500:])
        if limit_bytes and ended.returncode == 0:
            held = int(ended.stdout.split()[-1])
            expect(f"with {setting} it gets no more than the slice has", held <= limit_bytes, f"{held} bytes of {limit_bytes}")
            # This process has a context, modules and a part of its memory in the same slice.
            expect(f"with {setting} it gets most of that", held > limit_bytes // 2, f"{held} bytes of {limit_bytes}")


def main():
    way, seconds, limit_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    torch.use_deterministic_algorithms(True)
    answers.append({"asked": f"the loss after {TRAINING_STEPS} steps", "answer": train(TRAINING_STEPS).hex()})
    rates = {
        "steps_per_second": steps_per_second(seconds),
        "graph_steps_per_second": graph_steps_per_second(seconds),
        "sweeps_per_second": sweeps_per_second(seconds),
        "shared_blocks_per_second": shared_blocks_per_second(seconds),
    }
    check_graph()
    if way == "limited":
        check_cap(limit_bytes)
    if way != "unlimited":
        check_workers()
        check_profiler()
        check_allocators(limit_bytes if way == "limited" else 0)
        check_compiled()
    print(json.dumps({"findings": findings, "answers": answers, **rates}))


if __name__ == "__main__":
    main()
