# SPDX-License-Identifier: Apache-2.0
"""scripts/bench without a GPU: its sums, its table, and a whole run with programs that print made-up lines."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import bench_results as results  # noqa: E402


def line(peer, mode, ms, workload="gpt-1b", **more):
    return {"peer": peer, "workload": workload, "mode": mode, "precision": "bf16", "ms": ms, **more}


def example():
    return [line("encore", "eager", 57.0), line("encore", "graph", 45.0, peak_gib=20.5, setup_s=1.9),
            line("torch 2.11", "graph", 70.0, peak_gib=25.0, setup_s=9.0),
            line("torch 2.11", "compile_graph", 60.0, peak_gib=20.0, setup_s=30.0),
            line("torch 2.11", "graph", 1.0, precision="amp"),
            line("encore", "graph", 2.0, "moe-small"), {"workload": "moe-small", "mode": "graph", "error": "no"}]


class Ratios(unittest.TestCase):
    def test_a_ratio_is_to_the_fastest_mode_of_the_peer_at_the_same_precision(self):
        lines = results.complete(example(), {})
        self.assertEqual([l.get("ratio") for l in lines], [0.95, 0.75, 1.1667, 1.0, 1.0, None, None])

    def test_only_our_recorded_steps_have_targets(self):
        lines = results.complete(example(), {})
        self.assertEqual([l.get("target") for l in lines], [None, 0.9, None, None, None, 0.6, None])
        self.assertIs(lines[1]["target_holds"], True)
        self.assertIs(lines[1]["memory_holds"], False)  # 20.5 GiB, and the fastest mode took 20.0
        self.assertIs(lines[1]["setup_holds"], True)
        self.assertNotIn("target_holds", lines[5])  # nothing to compare with

    def test_a_missed_target_is_said_to_be_missed(self):
        lines = results.complete([line("encore", "graph", 9.1), line("torch", "graph", 10.0)], {})
        self.assertIs(lines[0]["target_holds"], False)
        lines = results.complete([line("encore", "graph", 9.0), line("torch", "graph", 10.0)], {})
        self.assertIs(lines[0]["target_holds"], True)

    def test_floors_go_to_our_lines_alone_and_the_given_lines_stay_as_they_were(self):
        given = example()
        lines = results.complete(given, {"gpt-1b": 33.33333})
        self.assertEqual([l.get("floor_ms") for l in lines], [33.3333, 33.3333] + [None] * 5)
        self.assertEqual(given, example())


class Table(unittest.TestCase):
    def test_a_row_for_each_recorded_workload(self):
        text = results.table(results.complete(example(), {"gpt-1b": 33.3}))
        self.assertEqual(text.splitlines(), [
            "| workload | encore eager | encore graph | torch's best | ratio | target | holds | floor "
            "| memory, GiB (torch) | set-up, s (torch) |",
            "|" + " --- |" * 10,
            "| gpt-1b | 57 | 45 | 60 (compile_graph) | 0.750 | 0.9 | yes | 33.3 | 20.5 (20) | 1.9 (30) |",
            "| moe-small |  | 2 |  |  | 0.6 |  |  |  |  |"])

    def test_no_results_give_no_table(self):
        self.assertEqual(results.table([{"kind": "run"}]), "")

    def test_numbers_keep_three_digits(self):
        self.assertEqual([results.number(v) for v in (0.12345, 1234.5, 12.0, 0, None)],
                         ["0.123", "1234", "12", "0", ""])


class Readme(unittest.TestCase):
    def test_what_stands_between_the_markers_is_replaced_and_nothing_else(self):
        readme = f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n"
        once = results.with_section(readme, "new\n")
        self.assertEqual(once, f"before\n{results.BEGIN}\n\nnew\n\n{results.END}\nafter\n")
        self.assertEqual(results.with_section(once, "new\n"), once)

    def test_markers_that_are_missing_doubled_or_in_the_wrong_order_are_refused(self):
        for readme in ("", results.BEGIN, results.END + results.BEGIN, (results.BEGIN + results.END) * 2):
            with self.assertRaises(results.BadReadme):
                results.with_section(readme, "new")

    def test_the_project_has_a_place_for_its_results(self):
        results.with_section((ROOT / "README.md").read_text(), "new")


class WholeRun(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def program(self, name, text):
        path = self.path / name
        path.write_text(f"#!{sys.executable}\nimport json, sys\narguments = sys.argv[1:]\n{text}")
        path.chmod(0o755)
        return str(path)

    def bench(self, *arguments):
        return subprocess.run([sys.executable, str(ROOT / "scripts" / "bench"), *arguments], capture_output=True,
                              text=True, check=False)

    def test_ours_and_the_peer_and_the_floors_end_up_in_one_file_and_in_the_readme(self):
        workload = "workload = arguments[arguments.index('--workloads') + 1]\n"
        ours = self.program("ours", workload + "print('hello')\nprint(json.dumps(dict(peer='encore', workload=workload, "
                                               "mode='graph', precision='bf16', ms=2.0)))")
        peer = self.program("peer", workload + "print(json.dumps(dict(peer='torch 2', workload=workload, "
                                               "mode='graph', precision='bf16', ms=5.0)))")
        encore = self.program("encore", "print(json.dumps({'profile': {'sum': {'floor_ms': 1.5}}, 'ab': "
                                        "{'verdict': 'keep', 'blocks': [1]}}.get(arguments[0], {'build': {'libraries': ['cuBLASLt 13.0.88']}}), indent=2))")
        kernels = self.program("kernels", "print(json.dumps({'context': {'cuda rates': 'fast'}, 'benchmarks': "
                                          "[{'name': 'a', 'real_time': 3.0, 'threads': 1}]}))")
        readme = self.path / "README.md"
        readme.write_text(f"# x\n{results.BEGIN}\n{results.END}\n")
        output = self.path / "results" / "a.jsonl"
        answer = self.bench("--program", ours, "--peer", peer, "--encore", encore, "--ab", "--kernels", kernels,
                            "--workloads", "gpt-1b,moe-small", "--modes", "graph", "--commit", "abc", "-o", str(output),
                            "--readme", str(readme))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        lines = [json.loads(text) for text in output.read_text().splitlines()]
        self.assertEqual([l.get("kind", l.get("peer")) for l in lines],
                         ["run", "encore", "torch 2", "encore", "torch 2", "profile", "profile", "ab", "ab", "kernel",
                          "kernel"])
        self.assertEqual({"gpu", "driver", "cuda", "commit", "flags", "date", "command"} - set(lines[0]), set())
        self.assertEqual((lines[0]["commit"], lines[0]["cuda"]), ("abc", "13.0.88"))
        self.assertEqual((lines[1]["ratio"], lines[1]["floor_ms"], lines[1]["target_holds"]), (0.4, 1.5, True))
        self.assertEqual(lines[7], {"kind": "ab", "workload": "gpt-1b", "verdict": "keep"})
        self.assertEqual(lines[10], {"kind": "kernel", "name": "a", "real_time": 3.0})
        self.assertIn("| moe-small | 2 | 5 (graph) | 0.400 | 0.6 | yes | 1.5 |", readme.read_text())
        self.assertIn("scripts/bench --program", readme.read_text())
        self.assertFalse(list(self.path.glob("**/*.partial")))

    def test_each_of_our_modes_has_a_process_of_its_own(self):
        ours = self.program("ours", "import os\nprint(json.dumps(dict(peer='encore', workload='gpt-1b', ms=2.0, "
                                    "mode=arguments[arguments.index('--modes') + 1], process=os.getpid())))")
        output = self.path / "a.jsonl"
        answer = self.bench("--program", ours, "--workloads", "gpt-1b", "--modes", "eager,graph", "-o", str(output))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        lines = [json.loads(text) for text in output.read_text().splitlines()[1:]]
        self.assertEqual([line["mode"] for line in lines], ["eager", "graph"])
        self.assertNotEqual(lines[0]["process"], lines[1]["process"])

    def test_a_program_that_fails_is_named_and_the_rest_is_kept(self):
        ours = self.program("ours", "print(json.dumps(dict(peer='encore', workload='gpt-1b', mode='graph', ms=2.0)))\n"
                                    "sys.exit(4)")
        output = self.path / "a.jsonl"
        answer = self.bench("--program", ours, "--peer", str(self.path / "missing.py"), "--workloads", "gpt-1b",
                            "--modes", "graph", "-o", str(output))
        self.assertEqual(answer.returncode, 1)
        self.assertIn("exit code 4", answer.stderr)
        self.assertEqual(len(output.read_text().splitlines()), 4)

    def test_a_readme_without_markers_is_refused_before_anything_runs(self):
        readme = self.path / "README.md"
        readme.write_text("nothing")
        answer = self.bench("--program", str(self.path / "missing"), "--readme", str(readme))
        self.assertEqual(answer.returncode, 2)
        self.assertIn("results:begin", answer.stderr)
        self.assertEqual(readme.read_text(), "nothing")


if __name__ == "__main__":
    unittest.main()
