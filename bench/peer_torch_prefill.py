"""PyTorch's prefill of Llama-3.2-1B's shape with random weights, for comparison with `neuronmlp bench model --device cuda` on `synth llama-3.2-1b`
in the same run: eager and torch.compile, one prompt, keys and values kept, logits of the last token. Usage: peer_torch_prefill.py [TOKENS...]. CSV on
stdout."""
import statistics
import sys

import torch
import torch.nn.functional as F

H, I, L, NH, NKV, D, V = 2048, 8192, 16, 32, 8, 64, 128256
dev, dt = "cuda", torch.bfloat16


def w(n, k):
    return torch.nn.Parameter(torch.randn(n, k, device=dev, dtype=dt) * k ** -0.5, requires_grad=False)


class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.emb = w(V, H)
        self.norms = [torch.ones(H, device=dev, dtype=dt) for _ in range(2 * L + 1)]
        self.qkv = torch.nn.ParameterList([w((NH + 2 * NKV) * D, H) for _ in range(L)])
        self.o = torch.nn.ParameterList([w(H, NH * D) for _ in range(L)])
        self.gate_up = torch.nn.ParameterList([w(2 * I, H) for _ in range(L)])
        self.down = torch.nn.ParameterList([w(H, I) for _ in range(L)])
        self.kv = [torch.zeros(2, NKV, n, D, device=dev, dtype=dt) for _ in range(L)]
        freq = 1.0 / 5e5 ** (torch.arange(0, D, 2, device=dev).float() / D)
        angle = torch.outer(torch.arange(n, device=dev).float(), freq)
        self.cos, self.sin = torch.cat([angle.cos()] * 2, -1).to(dt), torch.cat([angle.sin()] * 2, -1).to(dt)

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, ids):
        n = ids.shape[0]
        x = F.embedding(ids, self.emb)
        for l in range(L):
            q, k, v = F.linear(F.rms_norm(x, (H,), self.norms[2 * l], 1e-5), self.qkv[l]).split([NH * D, NKV * D, NKV * D], -1)
            q, k, v = (t.view(1, n, -1, D).transpose(1, 2) for t in (q, k, v))
            q, k = self.rotate(q), self.rotate(k)
            self.kv[l][0].copy_(k[0])
            self.kv[l][1].copy_(v[0])
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + F.linear(a.transpose(1, 2).reshape(n, NH * D), self.o[l])
            gate, up = F.linear(F.rms_norm(x, (H,), self.norms[2 * l + 1], 1e-5), self.gate_up[l]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.down[l])
        return F.linear(F.rms_norm(x[-1:], (H,), self.norms[-1], 1e-5), self.emb).argmax(-1)


def median_ms(f, ids, rounds=15):
    times = []
    with torch.no_grad():
        for i in range(rounds + 5):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            f(ids)
            end.record()
            torch.cuda.synchronize()
            if i >= 5:
                times.append(begin.elapsed_time(end))
    return statistics.median(times), min(times), max(times)


print("tokens,how,ms,min_ms,max_ms,tokens_per_s")
for n in [int(a) for a in sys.argv[1:]] or [512, 2048, 8192]:
    torch._dynamo.reset()
    model = Model(n)
    ids = torch.randint(0, V, (n,), device=dev)
    for how, f in (("eager", model), ("compiled", torch.compile(model))):
        ms, least, most = median_ms(f, ids)
        print(f"{n},{how},{ms:.3f},{least:.3f},{most:.3f},{n / ms * 1e3:.0f}", flush=True)
    del model
