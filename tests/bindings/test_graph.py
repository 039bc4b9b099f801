# SPDX-License-Identifier: Apache-2.0
import unittest

import encore
import support

try:
    import numpy
except ImportError:
    raise SystemExit("skipped: this Python has no numpy")

runtime = encore.Runtime(threads=2)
rows, inner, columns = 12, 20, 8


class Chain:
    """gelu(input @ weight), normalised, and its cross entropy with a gradient."""

    def __init__(self, stream):
        generator = numpy.random.default_rng(5)
        self.host_input = generator.standard_normal((rows, inner)).astype(numpy.float32)
        self.host_weight = generator.standard_normal((inner, columns)).astype(numpy.float32)
        self.host_labels = (numpy.arange(rows) * 5 % columns).astype(numpy.int32)
        self.input, self.weight = stream.to_device(self.host_input), stream.to_device(self.host_weight)
        self.labels = stream.to_device(self.host_labels)
        self.scale = stream.to_device(numpy.ones(columns, numpy.float32))
        self.product, self.active, self.output = (stream.zeros((rows, columns)) for _ in range(3))
        self.inverse_rms, self.row_losses = stream.zeros([rows]), stream.zeros([rows])
        self.count, self.loss = stream.zeros([1], "float64"), stream.zeros([1], "float64")

    def queue(self, stream):
        stream.multiply(self.input, self.weight, self.product)
        stream.activation("gelu_tanh", self.product, self.active)
        stream.rms_norm(self.active, self.scale, self.output, self.inverse_rms)
        stream.cross_entropy(self.output, self.labels, self.row_losses, self.count, self.loss, write_gradient=True)

    def written(self):
        return [self.product, self.active, self.output, self.inverse_rms, self.row_losses, self.count, self.loss]

    def expected(self):
        x = self.host_input.astype(numpy.float64) @ self.host_weight
        y = 0.5 * x * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi) * (x + 0.044715 * x**3)))
        y /= numpy.sqrt((y**2).mean(-1, keepdims=True) + 1e-5)
        losses = numpy.log(numpy.exp(y).sum(-1)) - y[numpy.arange(rows), self.host_labels]
        probability = numpy.exp(y) / numpy.exp(y).sum(-1, keepdims=True)
        return losses.mean(), (probability - numpy.eye(columns)[self.host_labels]) / rows


class Graph(unittest.TestCase):
    def setUp(self):
        self.stream = encore.Stream(runtime, support.backend)

    def test_a_recorded_chain_runs_only_when_replayed_and_gives_the_eager_bits(self):
        chain = Chain(self.stream)
        chain.queue(self.stream)
        eager = [self.stream.to_host(array).tobytes() for array in chain.written()]
        loss, gradient = chain.expected()
        self.assertAlmostEqual(self.stream.to_host(chain.loss)[0], loss, places=5)
        numpy.testing.assert_allclose(self.stream.to_host(chain.output), gradient, atol=1e-6)

        calls = []

        def launches(stream):
            calls.append(stream)
            chain.queue(stream)

        self.stream.clear(chain.loss)
        graph = self.stream.record("chain", launches)
        self.assertEqual(len(calls), 2)
        self.assertEqual(self.stream.to_host(chain.loss)[0], 0)
        self.assertEqual(graph.labels[0], "encore_multiply")
        self.assertGreaterEqual(graph.nodes, 6)
        launched = self.stream.counters[0]
        graph.replay()
        self.assertEqual([self.stream.to_host(array).tobytes() for array in chain.written()], eager)
        self.assertEqual(self.stream.counters[0], launched)
        graph.validate(chain.queue, chain.written())

    def test_validation_names_the_array_that_differs(self):
        values, amount = self.stream.zeros([4]), [1.0]
        graph = self.stream.record("fill", lambda stream: stream.fill(values, amount[0]))
        graph.validate(lambda stream: stream.fill(values, amount[0]), [values])
        amount[0] = 2.0
        with self.assertRaisesRegex(encore.ValidationError, "'array 0'"):
            graph.validate(lambda stream: stream.fill(values, amount[0]), [values])

    def test_what_the_function_raises_comes_out_of_record(self):
        with self.assertRaisesRegex(KeyError, "mine"):
            self.stream.record("raises", lambda stream: {}["mine"])
        with self.assertRaisesRegex(encore.CaptureError, "inside a recording"):
            self.stream.record("waits", lambda stream: stream.synchronize())
        values = self.stream.zeros([4])
        with self.assertRaises(encore.CaptureError):
            self.stream.record("allocates", lambda stream: stream.zeros([4]))
        graph = self.stream.record("fine", lambda stream: stream.fill(values, 3.0))
        with self.assertRaises(encore.CaptureError):
            self.stream.record("replays", lambda stream: graph.replay())
        graph.replay()
        numpy.testing.assert_array_equal(self.stream.to_host(values), 3)

    @unittest.skipIf(support.on_cuda, "functions of Python run on hosts")
    def test_a_function_of_python_is_a_node(self):
        values, calls = numpy.zeros(4, numpy.float32), []

        def triple():
            calls.append(values[0])
            values[:] *= 3
            if len(calls) == 3:
                raise OverflowError("three times is enough")

        def launches(stream):
            stream.fill(values, 2.0)
            stream.launch("triple", triple, reads=[values], writes=[values])
            stream.add(values, values, values)

        graph = self.stream.record("node", launches)
        self.assertEqual((calls, values[0]), ([], 0))
        self.assertIn("triple", graph.labels)
        graph.replay()
        graph.replay()
        self.assertEqual((calls, values.tolist()), ([2, 2], 4 * [12]))
        with self.assertRaisesRegex(OverflowError, "enough"):
            graph.replay()
        graph.replay()
        self.assertEqual(values[0], 12)

    def test_backward_agrees_with_differences(self):
        generator = numpy.random.default_rng(3)
        host = [generator.standard_normal(shape).astype(numpy.float32) for shape in ((3, 16), (16,), (3, 16))]
        x, w, dy = (self.stream.to_device(array) for array in host)
        dx, dw, r = self.stream.zeros((3, 16)), self.stream.zeros([16]), self.stream.zeros([3])
        y, workspace = self.stream.zeros((3, 16)), self.stream.zeros([4096])
        self.stream.rms_norm(x, w, y, r)
        self.stream.rms_norm_backward(x, w, r, dy, dx, dw, workspace)

        def value(a, b):
            a = a.astype(numpy.float64)
            return (host[2] * (a / numpy.sqrt((a**2).mean(-1, keepdims=True) + 1e-5) * b)).sum()

        moved = host[0].astype(numpy.float64)
        for place in ((0, 0), (1, 5), (2, 15)):
            step = numpy.zeros_like(moved)
            step[place] = 1e-5
            slope = (value(moved + step, host[1]) - value(moved - step, host[1])) / 2e-5
            self.assertAlmostEqual(self.stream.to_host(dx)[place], slope, places=4)
        normal = moved / numpy.sqrt((moved**2).mean(-1, keepdims=True) + 1e-5)
        numpy.testing.assert_allclose(self.stream.to_host(dw), (host[2] * normal).sum(0), rtol=1e-5, atol=1e-6)
        with self.assertRaisesRegex(encore.UsageError, "'workspace' is missing: pass an array of at least"):
            self.stream.rms_norm_backward(x, w, r, dy, dx, dw)

    def test_a_replayed_optimizer_reads_new_numbers(self):
        numbers = numpy.array([0.1, 0.0, 0.9, 0.99, 1e-8, 0, 1, 1, 0])
        weights, gradients = self.stream.to_device(numpy.ones(6, numpy.float32)), self.stream.zeros([6])
        self.stream.fill(gradients, 0.5)
        first, second = self.stream.zeros([6]), self.stream.zeros([6])
        scalars, norm = self.stream.to_device(numbers), self.stream.zeros([1], "float64")
        workspace = self.stream.zeros([1 << 16], "float64")
        graph = self.stream.record("adamw", lambda stream: stream.adamw(
            gradients, weights, first, second, scalars, norm, workspace))
        expected, m, v = 1.0, 0.0, 0.0
        for step, rate in ((1, 0.1), (2, 0.02)):
            numbers[0], numbers[6] = rate, step
            self.stream.copy(self.stream.to_device(numbers), scalars)
            graph.replay()
            m, v = 0.9 * m + 0.1 * 0.5, 0.99 * v + 0.01 * 0.25
            expected -= rate * (m / (1 - 0.9**step)) / (numpy.sqrt(v / (1 - 0.99**step)) + 1e-8)
            numpy.testing.assert_allclose(self.stream.to_host(weights), expected, rtol=1e-6)
        self.assertAlmostEqual(self.stream.to_host(norm)[0], numpy.sqrt(6 * 0.25))

    def test_arrays_that_do_not_fit_are_refused_by_name(self):
        x, y = self.stream.zeros((4, 8)), self.stream.zeros((4, 8))
        for call, words in (
            (lambda: self.stream.add(x, self.stream.zeros([8]), y), "'second' has 8 elements, not 32"),
            (lambda: self.stream.add(x, self.stream.zeros((4, 8), "bfloat16"), y), "'second' is of type bfloat16"),
            (lambda: self.stream.fill(numpy.zeros(4, numpy.int16), 0), "'values' is neither"),
            (lambda: self.stream.activation("relu", x, y), "'relu' does not exist"),
            (lambda: self.stream.zeros([4], "float16"), "'float16' does not exist"),
        ):
            with self.assertRaisesRegex(encore.UsageError, words):
                call()
        with self.assertRaisesRegex(encore.ConfigurationError, "do not fit together"):
            self.stream.multiply(x, x, y)
        if support.on_cuda:
            with self.assertRaisesRegex(encore.UsageError, "not in the GPU's memory"):
                self.stream.fill(numpy.zeros(4, numpy.float32), 0)
        else:
            with self.assertRaisesRegex(encore.UsageError, "'first' has gaps"):
                self.stream.add(numpy.zeros((4, 16), numpy.float32)[:, ::2], x, y)
            read_only = numpy.zeros(4, numpy.float32)
            read_only.flags.writeable = False
            with self.assertRaises(TypeError):
                self.stream.fill(read_only, 0)
            self.stream.add(read_only, read_only, numpy.zeros(4, numpy.float32))

    def test_arrays_larger_than_any_memory_are_refused(self):
        for shape in ((2**62, 4), (2**32, 2**32), (2**63,), (2**62,), (2**61,)):
            for make in (self.stream.empty, self.stream.zeros):
                with self.assertRaises(encore.OutOfMemoryError, msg=str(shape)):
                    make(shape)
        self.assertEqual(self.stream.to_host(self.stream.zeros((0, 3))).shape, (0, 3))
        self.assertEqual(self.stream.to_host(self.stream.zeros(())).shape, ())

    def test_arrays_of_other_libraries_are_taken_without_a_copy(self):
        try:
            import torch
        except ImportError:
            self.skipTest("this Python has no torch")
        device = "cuda" if support.on_cuda else "cpu"
        for dtype in (torch.float32, torch.bfloat16):
            values = torch.ones(8, dtype=dtype, device=device)
            torch.cuda.synchronize() if support.on_cuda else None
            graph = self.stream.record("double", lambda stream: stream.add(values, values, values))
            graph.replay()
            graph.replay()
            self.stream.synchronize()
            self.assertEqual(values.sum().item(), 32)
        mine = self.stream.zeros([8])
        theirs = torch.from_dlpack(mine)
        self.stream.fill(mine, 4.0)
        self.stream.synchronize()
        self.assertEqual(theirs.sum().item(), 32)


if __name__ == "__main__":
    unittest.main()
