"""The library route, for comparison with bench_cuda in the same run: cuBLAS matmuls through PyTorch, captured as a CUDA graph over as many
copies of the weights as make four times the L2 cache, at least 16 runs of up to 32 rows; median over launches, divided by the runs. CSV on stdout."""
import statistics
import sys

import torch

SHAPES = [("llama-3.2-1b", 2048, 8192, 0.0, 0), ("llama-3.2-1b", 2048, 8192, 0.2, 1280), ("llama-3.2-1b", 2048, 8192, 0.5, 768),
          ("qwen3-4b", 2560, 9728, 0.0, 0), ("qwen3-4b", 2560, 9728, 0.2, 1536), ("llama-3.1-8b", 4096, 14336, 0.0, 0),
          ("llama-3.1-8b", 4096, 14336, 0.2, 2432), ("llama-3.1-8b", 4096, 14336, 0.5, 1536)]
ROWS = [int(r) for r in (sys.argv[1] if len(sys.argv) > 1 else "1,8,32,2048,8192").split(",")]
RUNS_PER_GRAPH = 16  # of few rows, as in bench_cuda: launching a graph takes some microseconds
silu = torch.nn.functional.silu


def matrix(n, k):
    return torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k ** -0.5


def make(h, i, r):
    if r == 0:
        g, u, d = matrix(i, h), matrix(i, h), matrix(h, i)
        return (lambda x: (silu(x @ g.T) * (x @ u.T)) @ d.T), 2 * 3 * h * i
    gv, gu, uv, uu, dv, du = matrix(r, h), matrix(i, r), matrix(r, h), matrix(i, r), matrix(r, i), matrix(h, r)
    return (lambda x: ((silu((x @ gv.T) @ gu.T) * ((x @ uv.T) @ uu.T)) @ dv.T) @ du.T), 2 * 3 * r * (h + i)


def time_us(fns, x, launches):
    rounds = -(-RUNS_PER_GRAPH // len(fns)) if len(x) <= 32 else 1
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for f in fns[:3]:
            f(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for f in fns * rounds:
                f(x)
        times = []
        for i in range(launches + 3):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if i >= 3:
                times.append(begin.elapsed_time(end))
    return 1e3 * statistics.median(times) / len(fns) / rounds


print("model,ratio,rank,rows,torch_us")
with torch.inference_mode():
    for rows in ROWS:
        for model, h, i, ratio, r in SHAPES:
            fns, total = [], 0
            while total < 4 * torch.cuda.get_device_properties(0).L2_cache_size:
                f, size = make(h, i, r)
                fns.append(f)
                total += size
            x = torch.randn(rows, h, device="cuda", dtype=torch.bfloat16)
            print(f"{model},{ratio},{r},{rows},{time_us(fns, x, 200 if rows <= 32 else 30):.2f}", flush=True)
            del fns, f
            torch.cuda.empty_cache()
