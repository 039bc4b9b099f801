# SPDX-License-Identifier: Apache-2.0
"""Trains a small model, and records one kernel and replays it."""

import os

import encore

try:
    import numpy
except ImportError:
    raise SystemExit("skipped: this Python has no numpy")

backend = os.environ.get("ENCORE_TEST_BACKEND", "openmp")
model = {"family": "llama", "layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "vocab": 50, "seq": 32}

with encore.Runtime() as runtime:
    configuration = encore.Configuration(
        json={"model": model}, settings={"train.microbatch": 2, "train.lr": 0.01, "backend": backend})
    trainer = encore.Trainer(runtime, configuration)
    ids = numpy.tile(numpy.arange(32, dtype=numpy.int32), (1, 2, 1))  # [microbatches, sequences, tokens]
    losses = []
    for _ in range(20):
        trainer.set_batch(ids, ids + 1)  # the label is what comes next
        result = trainer.step(0.01)
        losses.append(result.loss)
    print(f"loss {losses[0]:.3f}, then {losses[-1]:.3f}; the last step replayed {result.graph_nodes} graph nodes")
    assert losses[-1] < losses[0] / 2 and result.mode == "replay"

    stream = encore.Stream(runtime, backend)
    values = stream.to_device(numpy.ones(1000, numpy.float32))
    graph = stream.record("double it", lambda stream: stream.add(values, values, values))
    for _ in range(10):
        graph.replay()
    print(f"ten replays made 1 into {stream.to_host(values)[-1]:.0f}")
    assert stream.to_host(values)[-1] == 1024
    del values

try:
    encore.Configuration(preset="tiny-lunch")
except encore.ConfigurationError as error:
    print(f"{type(error).__name__}, code {error.code}: {error}")
