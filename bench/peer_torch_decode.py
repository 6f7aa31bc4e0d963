"""PyTorch's compiled decode of Llama-3.2-1B's shape with random weights, for comparison with `neuronmlp run --device cuda` on `synth llama-3.2-1b`
in the same run: torch.compile with CUDA graphs, static cache, one token per step, greedy. CSV on stdout."""
import statistics
import sys

import torch
import torch.nn.functional as F

H, I, L, NH, NKV, D, V, CTX = 2048, 8192, 16, 32, 8, 64, 128256, 512
dev, dt = "cuda", torch.bfloat16


def w(n, k):
    return torch.nn.Parameter(torch.randn(n, k, device=dev, dtype=dt) * k ** -0.5, requires_grad=False)


def project(x, m):
    for p in m:
        x = F.linear(x, p)
    return x


class Model(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.emb = w(V, H)
        self.norms = [torch.ones(H, device=dev, dtype=dt) for _ in range(2 * L + 1)]
        self.qkv = torch.nn.ParameterList([w((NH + 2 * NKV) * D, H) for _ in range(L)])
        self.o = torch.nn.ParameterList([w(H, NH * D) for _ in range(L)])
        f = (lambda n, k: [w(n, k)]) if rank == 0 else (lambda n, k: [w(rank, k), w(n, rank)])
        self.gate, self.up, self.down = ([f(I, H) for _ in range(L)], [f(I, H) for _ in range(L)], [f(H, I) for _ in range(L)])
        self.k = [torch.zeros(1, NKV, CTX, D, device=dev, dtype=dt) for _ in range(L)]
        self.v = [torch.zeros(1, NKV, CTX, D, device=dev, dtype=dt) for _ in range(L)]
        freq = 1.0 / 5e5 ** (torch.arange(0, D, 2, device=dev).float() / D)
        angle = torch.outer(torch.arange(CTX, device=dev).float(), freq)
        self.cos, self.sin = torch.cat([angle.cos()] * 2, -1).to(dt), torch.cat([angle.sin()] * 2, -1).to(dt)
        self.places = torch.arange(CTX, device=dev)

    def rotate(self, x, pos):
        a, b = x.chunk(2, -1)
        return x * self.cos[pos] + torch.cat([-b, a], -1) * self.sin[pos]

    def forward(self, token, pos):
        x = F.embedding(token, self.emb)
        mask = (self.places <= pos)[None, None, None, :]
        for l in range(L):
            q, k, v = F.linear(F.rms_norm(x, (H,), self.norms[2 * l], 1e-5), self.qkv[l]).split([NH * D, NKV * D, NKV * D], -1)
            q, k = self.rotate(q.view(1, NH, 1, D), pos), self.rotate(k.view(1, NKV, 1, D), pos)
            self.k[l].index_copy_(2, pos, k)
            self.v[l].index_copy_(2, pos, v.view(1, NKV, 1, D))
            a = F.scaled_dot_product_attention(q, self.k[l], self.v[l], attn_mask=mask, enable_gqa=True)
            x = x + F.linear(a.reshape(1, NH * D), self.o[l])
            n = F.rms_norm(x, (H,), self.norms[2 * l + 1], 1e-5)
            x = x + project(F.silu(project(n, self.gate[l])) * project(n, self.up[l]), self.down[l])
        return F.linear(F.rms_norm(x, (H,), self.norms[-1], 1e-5), self.emb).argmax(-1)


print("ratio,rank,torch_compiled_ms_per_token")
for ratio, rank in [(0.0, 0), (0.2, 1280), (0.5, 768)]:
    torch._dynamo.reset()
    with torch.inference_mode():
        m = Model(rank)
        step = torch.compile(m, mode="reduce-overhead", fullgraph=True)
        token = torch.zeros(1, device=dev, dtype=torch.long)
        times = []
        for i in range(256):
            pos = torch.tensor([i], device=dev)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.compiler.cudagraph_mark_step_begin()
            begin.record()
            token = step(token, pos).clone()
            end.record()
            end.synchronize()
            if i >= 56:
                times.append(begin.elapsed_time(end))
    print(f"{ratio},{rank},{statistics.median(times):.4f}", flush=True)
    del m, step
    torch.cuda.empty_cache()
