# SPDX-License-Identifier: Apache-2.0
"""Who keeps whom alive, and what is said to someone who ends things in the wrong order."""

import gc
import os
import subprocess
import sys
import unittest
import weakref

import encore
import support

try:
    import numpy
except ImportError:
    raise SystemExit("skipped: this Python has no numpy")

runtime = encore.Runtime(threads=2)
weight = "layer.0/attn/norm.weight"


def run(program):
    """Another process; Kokkos starts once in each. Returns its status and what it wrote."""
    start = f"import encore, support, numpy\nbackend = {support.backend!r}\n"
    done = subprocess.run([sys.executable, "-c", start + program], capture_output=True, text=True, timeout=120,
                          cwd=os.path.dirname(os.path.abspath(__file__)))
    return done.returncode, done.stdout + done.stderr


class Lifetime(unittest.TestCase):
    def test_an_array_keeps_its_trainer_alive(self):
        objects = runtime.objects()
        trained = support.trainer(runtime)
        copy = trained.read(weight)
        view = trained.array(weight)
        del trained
        gc.collect()
        self.assertEqual(runtime.objects(), objects + 1)
        stream = encore.Stream(runtime, support.backend)
        numpy.testing.assert_array_equal(stream.to_host(view), copy)
        del view, stream
        gc.collect()
        self.assertEqual(runtime.objects(), objects)

    def test_a_trainer_is_not_closed_under_its_arrays(self):
        trained = support.trainer(runtime)
        view = trained.array(weight)
        with self.assertRaisesRegex(encore.UsageError, "1 array looks into the memory of the trainer"):
            trained.close()
        support.step(trained)
        del view
        trained.close()
        trained.close()
        for use in (lambda: support.step(trained), lambda: trained.read(weight), lambda: trained.array(weight)):
            with self.assertRaisesRegex(encore.UsageError, "the trainer is closed"):
                use()

    def test_an_array_keeps_its_stream_alive_and_a_closed_one_says_so(self):
        stream = encore.Stream(runtime, support.backend)
        values = stream.zeros([4])
        with self.assertRaisesRegex(encore.UsageError, "memory of the stream"):
            stream.close()
        again = weakref.ref(stream)
        other = encore.Stream(runtime, support.backend)
        del stream
        gc.collect()
        self.assertEqual(other.to_host(values).tolist(), 4 * [0])
        del values
        gc.collect()
        self.assertIsNone(again())
        other.close()
        with self.assertRaisesRegex(encore.UsageError, "the stream is closed"):
            other.zeros([4])

    @unittest.skipIf(support.on_cuda, "arrays of NumPy are the host's")
    def test_a_graph_keeps_the_arrays_that_it_touches(self):
        stream = encore.Stream(runtime, support.backend)
        values = numpy.zeros(4, numpy.float32)
        alive = weakref.ref(values)
        graph = stream.record("fill", lambda on, array=values: on.fill(array, 5.0))
        del values
        gc.collect()
        self.assertIsNotNone(alive())
        graph.replay()
        self.assertEqual(alive().tolist(), 4 * [5])
        graph.close()
        gc.collect()
        self.assertIsNone(alive())
        with self.assertRaisesRegex(encore.UsageError, "the graph is closed"):
            graph.replay()

    @unittest.skipIf(support.on_cuda, "arrays of NumPy are the host's")
    def test_a_graph_keeps_the_arrays_that_a_node_reads_and_writes(self):
        stream = encore.Stream(runtime, support.backend)
        calls = []
        arrays = [numpy.zeros(4, numpy.float32) for _ in range(2)]
        alive = [weakref.ref(array) for array in arrays]

        def launches(on):
            on.launch("count", lambda: calls.append(1), reads=arrays[:1], writes=arrays[1:])

        graph = stream.record("count", launches)
        arrays.clear()
        gc.collect()
        self.assertTrue(all(array() is not None for array in alive))
        graph.replay()
        self.assertEqual(calls, [1])
        graph.close()
        gc.collect()
        self.assertTrue(all(array() is None for array in alive))

    @unittest.skipIf(support.on_cuda, "NumPy takes arrays of the host")
    def test_dlpack_goes_both_ways_without_a_copy(self):
        stream = encore.Stream(runtime, support.backend)
        mine = stream.zeros([4])
        theirs = numpy.from_dlpack(mine)
        stream.fill(mine, 3.0)
        self.assertEqual(theirs.tolist(), 4 * [3])
        trained = support.trainer(runtime)
        weights = numpy.from_dlpack(trained.array(weight))
        self.assertEqual(weights.tolist(), trained.read(weight).tolist())
        narrow = stream.zeros([4], "bfloat16")
        self.assertEqual(narrow.__dlpack_device__(), (1, 0))
        stream.fill(narrow, 1.5)
        self.assertEqual(stream.to_host(narrow).tolist(), 4 * [1.5])

    def test_a_runtime_is_not_closed_under_its_objects(self):
        status, text = run("""
runtime = encore.Runtime()
trained = support.trainer(runtime)
stream = encore.Stream(runtime, backend)
for _ in range(2):
    try:
        runtime.close()
        raise SystemExit("was closed")
    except encore.UsageError as error:
        assert "trainer of a llama model" in str(error) and "stream on" in str(error) and error.code == 1, error
    support.step(trained)
del trained, stream
runtime.close()
try:
    encore.Runtime()
    raise SystemExit("was made twice")
except encore.UsageError as error:
    assert "finalised" in str(error)
try:
    support.trainer(runtime)
    raise SystemExit("made on a closed runtime")
except encore.UsageError as error:
    assert "the runtime is closed" in str(error)
print("good")
""")
        self.assertEqual((status, text.strip().splitlines()[-1:]), (0, ["good"]), text)

    def test_a_context_closes_what_is_left(self):
        status, text = run("""
with encore.Runtime() as runtime:
    trained = support.trainer(runtime)
    stream = encore.Stream(runtime, backend)
    values = stream.zeros([4])
    graph = stream.record("fill", lambda on: on.fill(values, 1.0))
    graph.replay()
    support.step(trained)
    del values
    # The graph keeps the array, and the context closes the graph first.
for use in (trained.step, graph.replay, stream.synchronize):
    try:
        use()
        raise SystemExit("works after the end")
    except encore.UsageError as error:
        assert "closed" in str(error), error
print("good")
""")
        self.assertEqual((status, text.strip().splitlines()[-1:]), (0, ["good"]), text)

    def test_a_program_may_just_end(self):
        status, text = run("""
runtime = encore.Runtime()
trained = support.trainer(runtime)
view = trained.array("layer.0/attn/norm.weight")
stream = encore.Stream(runtime, backend)
values = stream.zeros([4])
graph = stream.record("fill", lambda on: on.fill(values, 1.0))
support.step(trained)
graph.replay()
print("good")
""")
        self.assertEqual((status, text.strip().splitlines()[-1:]), (0, ["good"]), text)


if __name__ == "__main__":
    unittest.main()
