"""The PyTorch peer: one training step of a GPT / MoE / SwiGLU stack, eager, compiled and under CUDA graphs.

Prints one JSON line per (workload, mode). Run it on the same GPU, in the same run, as the program it is
compared with. bf16 weights and activations, fp32 softmax/norm statistics and loss, fused capturable AdamW.
--precision bf16: bf16 weights, gradients and Adam moments; amp: fp32 weights and moments under bf16 autocast.
Modes: eager | graph (one CUDA graph for forward+backward+optimizer) | layer (make_graphed_callables per
layer) | compile (torch.compile, eager launch) | compile_graph (torch.compile inside one full CUDA graph).
Started by torchrun each process has a GPU of its own and trains under DistributedDataParallel, gradients as views of
its buckets; rank 0 prints. The graph of a step then contains DDP's collectives.
"""
import argparse, json, math, os, statistics, time
os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # its watchdog queries events, which a capture forbids
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist

RANKS = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))

WORKLOADS = {
    # name: hidden, layers, heads, kv_heads, ffn, vocab, seq, mbs, experts, topk, expert_ffn
    "gpt2-124m": dict(hidden=768, layers=12, heads=12, kv=12, ffn=3072, vocab=50304, seq=1024, mbs=8),
    "gpt2-124m-b1": dict(hidden=768, layers=12, heads=12, kv=12, ffn=3072, vocab=50304, seq=1024, mbs=1),
    "tiny-launch": dict(hidden=256, layers=24, heads=4, kv=4, ffn=1024, vocab=1024, seq=128, mbs=1),
    "gpt-1b": dict(hidden=2048, layers=16, heads=16, kv=16, ffn=8192, vocab=50304, seq=2048, mbs=2),
    "moe-qwen3": dict(hidden=2048, layers=4, heads=32, kv=4, ffn=0, vocab=32000, seq=4096, mbs=1,
                      experts=128, topk=8, expert_ffn=768),
    "moe-small": dict(hidden=512, layers=8, heads=8, kv=8, ffn=0, vocab=8192, seq=512, mbs=1,
                      experts=16, topk=2, expert_ffn=1024),
}

class RMSNorm(nn.Module):
    def __init__(s, d): super().__init__(); s.w = nn.Parameter(torch.ones(d))
    def forward(s, x): return F.rms_norm(x, (x.shape[-1],), s.w, 1e-5)

def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

class Attn(nn.Module):
    def __init__(s, c):
        super().__init__(); s.c = c; h = c["hidden"]; s.hd = max(h // c["heads"], 64) if c.get("experts", 0) > 64 else h // c["heads"]
        s.qkv = nn.Linear(h, (c["heads"] + 2 * c["kv"]) * s.hd, bias=False); s.o = nn.Linear(c["heads"] * s.hd, h, bias=False)
        s.n = RMSNorm(h)
        t = torch.arange(c["seq"]).float(); f = 1e4 ** (-torch.arange(0, s.hd, 2).float() / s.hd)
        s.register_buffer("cos", torch.cos(t[:, None] * f)); s.register_buffer("sin", torch.sin(t[:, None] * f))
    def forward(s, x):
        B, T, _ = x.shape; c = s.c
        q, k, v = s.qkv(s.n(x)).view(B, T, -1, s.hd).transpose(1, 2).split([c["heads"], c["kv"], c["kv"]], 1)
        q, k = rope(q, s.cos.to(q.dtype), s.sin.to(q.dtype)), rope(k, s.cos.to(q.dtype), s.sin.to(q.dtype))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c["kv"] != c["heads"])
        return x + s.o(y.transpose(1, 2).reshape(B, T, -1))

class MLP(nn.Module):
    def __init__(s, c):
        super().__init__(); h = c["hidden"]; s.n = RMSNorm(h)
        s.a = nn.Linear(h, 2 * c["ffn"], bias=False); s.b = nn.Linear(c["ffn"], h, bias=False)
    def forward(s, x):
        g, u = s.a(s.n(x)).chunk(2, -1); return x + s.b(F.silu(g) * u)

class MoE(nn.Module):
    """Dropless top-k MoE on torch._grouped_mm (device-side offsets, so it captures)."""
    def __init__(s, c):
        super().__init__(); s.c = c; h, e, f = c["hidden"], c["experts"], c["expert_ffn"]; s.n = RMSNorm(h)
        s.r = nn.Linear(h, e, bias=False)
        s.a = nn.Parameter(torch.randn(e, h, 2 * f) * 0.02); s.b = nn.Parameter(torch.randn(e, f, h) * 0.02)
    def forward(s, x):
        B, T, H = x.shape; E, K = s.c["experts"], s.c["topk"]; y = s.n(x).view(-1, H)
        p, idx = s.r(y).float().softmax(-1).topk(K, -1); p = (p / p.sum(-1, True)).to(x.dtype)
        flat = idx.reshape(-1); order = flat.argsort(stable=True)
        offs = torch.zeros(E, device=x.device, dtype=torch.int32).scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32)).cumsum(0).to(torch.int32)
        xp = y[order // K]
        g, u = torch._grouped_mm(xp, s.a, offs=offs).chunk(2, -1)
        o = torch._grouped_mm(F.silu(g) * u, s.b, offs=offs) * p.reshape(-1)[order][:, None]
        return x + torch.zeros_like(y).index_add_(0, order // K, o).view(B, T, H)

class GPT(nn.Module):
    def __init__(s, c):
        super().__init__(); s.c = c; s.emb = nn.Embedding(c["vocab"], c["hidden"])
        s.layers = nn.ModuleList([nn.Sequential(Attn(c), MoE(c) if c.get("experts") else MLP(c)) for _ in range(c["layers"])])
        s.n = RMSNorm(c["hidden"]); s.head = nn.Linear(c["hidden"], c["vocab"], bias=False)
    def forward(s, ids, tgt):
        x = s.emb(ids)
        for l in s.layers: x = l(x)
        return F.cross_entropy(s.head(s.n(x)).view(-1, s.c["vocab"]).float(), tgt.view(-1))

def flops(c):
    hd = max(c["hidden"] // c["heads"], 64) if c.get("experts", 0) > 64 else c["hidden"] // c["heads"]
    lin = c["hidden"] * (c["heads"] + 2 * c["kv"]) * hd + c["heads"] * hd * c["hidden"]
    lin += 3 * c["hidden"] * c["expert_ffn"] * c["topk"] if c.get("experts") else 3 * c["hidden"] * c["ffn"]
    att = c["seq"] * c["heads"] * hd  # causal: half of 2*T*T*d per matrix, two matrices
    n = c["mbs"] * c["seq"]
    return 6 * n * (c["layers"] * (lin + att) + c["vocab"] * c["hidden"])

def run(name, mode, iters, precision="bf16"):
    c = WORKLOADS[name]; torch.manual_seed(0)
    with torch.device("cuda"): m = GPT(c)
    for l in m.modules():
        if isinstance(l, nn.Linear): nn.init.normal_(l.weight, std=0.02)
    m = m.to(torch.bfloat16) if precision == "bf16" else m; opt = torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True, capturable=True)
    torch.manual_seed(RANK)
    ids = torch.randint(0, c["vocab"], (c["mbs"], c["seq"]), device="cuda"); tgt = torch.roll(ids, -1, 1)
    torch.cuda.reset_peak_memory_stats(); t0 = time.time()
    if mode == "layer":
        x = torch.randn(c["mbs"], c["seq"], c["hidden"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
        g = torch.cuda.make_graphed_callables(tuple(m.layers), tuple((x,) for _ in m.layers)); m.layers = nn.ModuleList(g) if all(isinstance(z, nn.Module) for z in g) else g
    s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    f = torch.compile(m) if mode.startswith("compile") else m
    if RANKS > 1:
        with torch.cuda.stream(s): f = nn.parallel.DistributedDataParallel(f, gradient_as_bucket_view=True, static_graph=True)
    def step():
        opt.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp", cache_enabled=False): loss = f(ids, tgt)
        loss.backward(); opt.step(); return loss
    loss0 = None
    with torch.cuda.stream(s):
        for i in range(12 if RANKS > 1 else 4):  # DDP rebuilds its buckets in its first steps
            l = step()
            if loss0 is None: loss0 = l.item()
    torch.cuda.current_stream().wait_stream(s); torch.cuda.synchronize(); cap = None; go = step
    if mode in ("graph", "compile_graph"):
        t1 = time.time(); G = torch.cuda.CUDAGraph()
        with torch.cuda.graph(G): out = step()
        torch.cuda.synchronize(); cap = time.time() - t1; go = G.replay
    for _ in range(5): go()
    torch.cuda.synchronize(); ts = []
    for _ in range(iters):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True); w = time.perf_counter(); a.record(); go(); b.record(); b.synchronize()
        ts.append((a.elapsed_time(b), (time.perf_counter() - w) * 1e3))
    ms = statistics.median(t[1] for t in ts)
    if RANK == 0: print(json.dumps(dict(peer="torch " + torch.__version__, workload=name, mode=mode, precision=precision, ranks=RANKS, ms=round(ms, 4), gpu_ms=round(statistics.median(t[0] for t in ts), 4),
          tok_s=round(RANKS * c["mbs"] * c["seq"] / ms * 1e3), tflops=round(flops(c) / ms / 1e9, 1), capture_s=cap and round(cap, 3), setup_s=round(time.time() - t0, 1),
          peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2), loss0=round(loss0, 4), params_m=round(sum(p.numel() for p in m.parameters()) / 1e6, 1))), flush=True)

if __name__ == "__main__":
    ap = argparse.ArgumentParser(); ap.add_argument("--workloads", default=",".join(WORKLOADS)); ap.add_argument("--modes", default="eager,layer,graph,compile,compile_graph"); ap.add_argument("--iters", type=int, default=30); ap.add_argument("--precision", default="bf16", choices=["bf16", "amp"])
    a = ap.parse_args()
    if RANKS > 1:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); dist.init_process_group("nccl")
    for w in a.workloads.split(","):
        for mo in a.modes.split(","):
            try: run(w, mo, a.iters, a.precision)
            except Exception as e: print(json.dumps(dict(workload=w, mode=mo, error=str(e)[:300])), flush=True)
            torch._dynamo.reset(); torch.cuda.empty_cache()
    if RANKS > 1: os._exit(0)  # a graph that holds collectives is not torn down in order
