"""PyTorch on one device: a training loop, the memory cap, a CUDA graph.

Called by aliquot-gpu-check as `check_torch.py WAY SECONDS`, where WAY is bare, unlimited or limited. The last line of its
output is JSON: what was found, the answers that must be the same in every way, and training steps in a second, launched one by
one and as a graph.
"""

import json
import os
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


def check_cap():
    free, total = torch.cuda.mem_get_info()
    chunks = []
    try:
        while len(chunks) * CHUNK_BYTES <= total:
            chunks.append(torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda"))
        expect("beyond the cap torch.cuda.OutOfMemoryError is raised", False, f"{len(chunks)} chunks were given")
    except torch.cuda.OutOfMemoryError:
        held = len(chunks) * CHUNK_BYTES
        expect("beyond the cap torch.cuda.OutOfMemoryError is raised", True, f"after {held >> 20} MiB")
        expect("and not before the cap", held + 2 * CHUNK_BYTES > free, f"{held} bytes given, {free} were free")
    chunks.clear()
    torch.cuda.empty_cache()
    loss = train(TRAINING_STEPS)
    expect("training goes on afterwards", loss == loss, f"loss {loss}")


def main():
    way, seconds = sys.argv[1], float(sys.argv[2])
    torch.use_deterministic_algorithms(True)
    answers.append({"asked": f"the loss after {TRAINING_STEPS} steps", "answer": train(TRAINING_STEPS).hex()})
    rate, graph_rate = steps_per_second(seconds), graph_steps_per_second(seconds)
    check_graph()
    if way == "limited":
        check_cap()
    print(json.dumps({"findings": findings, "answers": answers, "steps_per_second": rate, "graph_steps_per_second": graph_rate}))


main()
