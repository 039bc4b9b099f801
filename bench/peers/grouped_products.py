# SPDX-License-Identifier: Apache-2.0
"""cuBLAS' batched products, and torch's grouped ones, at the sizes of encore_kernel_benchmark's balanced loads.

    python3 bench/peers/grouped_products.py

Prints one JSON line a product, with the operands and bytes of the grouped one: every expert has the same number of
rows, so cuBLAS can take them as one batch of dense products. Random data, median of 20 runs of one CUDA graph each.
"""
import json
import statistics

import torch

SHAPES = {  # experts, rows of an expert, hidden, ffn
    "moe-qwen3": (128, 256, 2048, 768),
    "moe-small": (16, 64, 512, 1024),
}


def microseconds(run, repeats=10):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    times = []
    for _ in range(22):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / repeats)
    return statistics.median(times[2:])


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def main():
    for name, (experts, rows, hidden, ffn) in SHAPES.items():
        # form: (m, k, n) of an expert's product
        forms = {
            "up_forward": (rows, hidden, 2 * ffn),
            "up_input_gradient": (rows, 2 * ffn, hidden),
            "up_weight_gradient": (2 * ffn, rows, hidden),
            "down_forward": (rows, ffn, hidden),
            "down_input_gradient": (rows, hidden, ffn),
            "down_weight_gradient": (hidden, rows, ffn),
        }
        offsets = torch.arange(rows, experts * rows + 1, rows, device="cuda", dtype=torch.int32)
        for form, (m, k, n) in forms.items():
            flops = 2 * experts * m * k * n
            weight_gradient = form.endswith("weight_gradient")
            if weight_gradient:
                first, second = random(experts, k, m).transpose(1, 2), random(experts, k, n)
                rows_first, rows_second = random(m, experts * k), random(experts * k, n)
            else:
                first, second = random(experts, m, k), random(experts, n, k).transpose(1, 2)
                rows_first, rows_second = random(experts * m, k), second
            result = random(experts, m, n)
            batched = microseconds(lambda: torch.bmm(first, second, out=result))
            line = dict(peer="torch " + torch.__version__, product=f"{form}/{name}/balanced", batched_us=round(batched, 2),
                        batched_tflops=round(flops / batched / 1e6, 1))
            try:
                grouped = microseconds(lambda: torch._grouped_mm(rows_first, rows_second, offs=offsets))
                line.update(grouped_us=round(grouped, 2), grouped_tflops=round(flops / grouped / 1e6, 1))
            except Exception as error:
                line.update(grouped_error=str(error)[:120])
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
