# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/bindings.md are stretches of the files that the tests compile and run."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = {"c": "example.c", "fortran": "example.f90", "python": "test_example.py"}


class BindingsPage(unittest.TestCase):
    def test_every_program_is_a_stretch_of_its_file(self):
        blocks = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "docs/bindings.md").read_text(), re.M | re.S)
        self.assertEqual({language for language, _ in blocks}, set(FILES))
        for language, block in blocks:
            with self.subTest(language=language, block=block[:40]):
                stretch = block.removesuffix("    ...\n")
                self.assertIn(stretch, (ROOT / "tests/bindings" / FILES[language]).read_text())


if __name__ == "__main__":
    unittest.main()
