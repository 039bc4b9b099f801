# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python module share."""

import os

import encore

backend = os.environ.get("ENCORE_TEST_BACKEND", "openmp")
on_cuda = backend == "cuda"
sequence, vocabulary = 16, 40

tiny = {
    "model": {"family": "llama", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48,
              "vocab": vocabulary, "seq": sequence},
    "train": {"microbatch": 2, "microbatches": 2, "steps": 10, "lr": 0.01},
    "backend": backend,
    "seed": 3,
}


def trainer(runtime, **settings):
    """A small one; settings as in train_lr=0.1."""
    changed = {key.replace("_", ".", 1): value for key, value in settings.items()}
    return encore.Trainer(runtime, encore.Configuration(json=tiny, settings=changed))


def batch(step=0):
    """ids and labels, [microbatches, sequences, tokens]."""
    import numpy

    place = numpy.arange(2 * 2 * sequence).reshape(2, 2, sequence)
    ids = (place * 7 + step * 3) % vocabulary
    labels = numpy.where(place % sequence == sequence - 1, -1, (ids + 7) % vocabulary)
    return ids.astype(numpy.int32), labels.astype(numpy.int32)


def step(trained, eagerly=False):
    trained.set_batch(*batch(trained.steps_done))
    return trained.step_eagerly() if eagerly else trained.step()
