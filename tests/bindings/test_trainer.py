# SPDX-License-Identifier: Apache-2.0
import json
import os
import tempfile
import threading
import time
import unittest

import encore
import support

try:
    import numpy
except ImportError:
    raise SystemExit("skipped: this Python has no numpy")

runtime = encore.Runtime(threads=2)


class Trainer(unittest.TestCase):
    def test_replayed_steps_give_the_bits_of_eager_ones_and_learn(self):
        replayed = support.trainer(runtime, graph_warmup_steps=1)
        eager = support.trainer(runtime, graph_impl="none")
        modes, losses = [], []
        for _ in range(8):
            left, right = support.step(replayed), support.step(eager)
            self.assertEqual((left.loss, left.gradient_norm), (right.loss, right.gradient_norm))
            modes.append(left.mode)
            losses.append(left.loss)
        self.assertEqual(modes, ["eager", "capture"] + 6 * ["replay"])
        self.assertLess(losses[-1], losses[0] - 0.5)
        for name in replayed.names():
            self.assertEqual(replayed.read(name).tobytes(), eager.read(name).tobytes(), name)
        self.assertEqual(support.step(replayed, eagerly=True).loss, support.step(eager).loss)
        self.assertEqual((replayed.refusal(), replayed.steps_done), ("", 9))
        self.assertIn("loss=", repr(left))

    def test_evaluation_is_the_loss_of_its_logits(self):
        trained = support.trainer(runtime)
        ids, labels = (tokens[0] for tokens in support.batch())
        with self.assertRaisesRegex(encore.UsageError, "before the first evaluate"):
            trained.logits()
        loss = trained.evaluate(ids, labels)
        logits = trained.logits().astype(numpy.float64)
        self.assertEqual(logits.shape, (2, support.sequence, support.vocabulary))
        counts = labels >= 0
        chosen = numpy.take_along_axis(logits, numpy.maximum(labels, 0)[..., None], -1)[..., 0]
        losses = numpy.log(numpy.exp(logits).sum(-1)) - chosen
        self.assertAlmostEqual(loss, losses[counts].mean(), places=5)

    def test_parameters_are_seen_read_and_written_by_both_names(self):
        trained = support.trainer(runtime)
        name, published = "layer.1/attn/norm.weight", "model.layers.1.input_layernorm.weight"
        values = numpy.linspace(0.5, 1.5, 32, dtype=numpy.float32)
        trained.write(name, values)
        numpy.testing.assert_array_equal(trained.read(published), values)
        if not support.on_cuda:
            view = trained.array(published)
            self.assertEqual((view.shape, view.dtype), ((32,), numpy.float32))
            view[0] = 7  # no copy
            self.assertEqual(trained.read(name)[0], 7)
            trained.write(name, values)
            self.assertEqual(view[0], values[0])
        support.step(trained)
        self.assertGreater(numpy.abs(trained.read(name, "gradients")).max(), 0)
        with self.assertRaisesRegex(encore.UsageError, "nearest|did you mean"):
            trained.read("layer.1/attn/norm.wait")
        with self.assertRaisesRegex(encore.UsageError, "train.master_weights"):
            trained.array(name, "master")
        with self.assertRaisesRegex(encore.UsageError, "array 'moments' does not exist"):
            trained.array(name, "moments")

    def test_bfloat16_weights_are_seen_through_dlpack(self):
        trained = support.trainer(runtime, train_precision="bf16", train_master_weights=True)
        name = "layer.0/attn/norm.weight"
        view = trained.array(name)
        self.assertTrue(hasattr(view, "__dlpack__"))
        self.assertEqual(view.__dlpack_device__()[0], 2 if support.on_cuda else 1)
        stream = encore.Stream(runtime, support.backend)
        numpy.testing.assert_array_equal(stream.to_host(view), trained.read(name))
        self.assertEqual(trained.read(name, "master").dtype, numpy.float32)

    def test_a_checkpoint_resumes_bit_by_bit(self):
        straight, resumed = support.trainer(runtime), support.trainer(runtime, seed=9)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint.safetensors")
            support.step(straight)
            straight.save(path)
            self.assertTrue(resumed.load(path))
            from_file = json.loads(encore.Configuration(checkpoint=path).text())
        self.assertEqual(from_file["model"]["hidden"], 32)
        self.assertEqual(support.step(straight).loss, support.step(resumed).loss)
        with self.assertRaises(encore.InputFileError):
            resumed.load("no such file")
        with self.assertRaises(encore.OutputFileError):
            resumed.save("/no/such/folder/file")

    def test_batches_of_other_shapes_and_tokens_are_refused(self):
        trained = support.trainer(runtime)
        ids, labels = support.batch()
        flat_ids, flat_labels = (tokens.reshape(4, support.sequence) for tokens in (ids, labels))
        trained.set_batch(flat_ids, flat_labels)
        self.assertEqual(trained.batch_shape, [2, 2, support.sequence])
        with self.assertRaisesRegex(encore.UsageError, "different shapes"):
            trained.set_batch(ids, flat_labels)
        with self.assertRaisesRegex(encore.UsageError, "2 microbatches"):
            trained.set_batch(flat_ids[:3], flat_labels[:3])
        with self.assertRaises(encore.ReplayContractError):
            trained.set_batch(numpy.tile(ids, (1, 1, 2)), numpy.tile(labels, (1, 1, 2)))
        ids[0, 0, 0] = support.vocabulary
        with self.assertRaisesRegex(encore.InputFileError, "40"):
            trained.set_batch(ids, labels)
        with self.assertRaisesRegex(encore.ReplayContractError, "weight_decay"):
            trained.set_scalar("wait_decay", 1)
        with self.assertRaisesRegex(encore.OutOfMemoryError, "graph.memory_limit") as raised:
            support.trainer(runtime, graph_memory_limit=1000)
        self.assertIsInstance(raised.exception, MemoryError)

    def test_threads_train_side_by_side_with_the_numbers_of_one(self):
        expected = support.trainer(runtime)
        losses = [support.step(expected).loss for _ in range(6)]
        seen = {}

        def train(which):
            trained = support.trainer(runtime)
            seen[which] = [support.step(trained).loss for _ in range(6)]

        threads = [threading.Thread(target=train, args=(which,)) for which in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(seen, {which: losses for which in range(3)})

    def test_other_threads_run_during_a_step(self):
        trained = support.trainer(runtime, model_seq=256, train_seq=256, model_hidden=128, train_microbatch=8,
                                  graph_impl="none")
        tokens = numpy.zeros((2, 8, 256), numpy.int32)
        trained.set_batch(tokens, tokens)
        ticks, ended = [], threading.Event()

        def tick():
            while not ended.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.0005)

        ticking = threading.Thread(target=tick)
        ticking.start()
        begin = time.perf_counter()
        trained.step()
        end = time.perf_counter()
        ended.set()
        ticking.join()
        during = sum(begin < moment < end for moment in ticks)
        self.assertGreater(during, 2, f"a step of {1000 * (end - begin):.1f} ms")


if __name__ == "__main__":
    unittest.main()
