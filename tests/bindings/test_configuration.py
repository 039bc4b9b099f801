# SPDX-License-Identifier: Apache-2.0
import json
import os
import tempfile
import unittest

import encore
import support


class Configuration(unittest.TestCase):
    def test_later_sources_win(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.json")
            with open(path, "w") as file:
                json.dump({"train": {"lr": 0.25, "steps": 5}}, file)
            configuration = encore.Configuration(preset="bytes", file=path, settings={"train.steps": 6})
        values = json.loads(configuration.text())
        self.assertEqual((values["train"]["lr"], values["train"]["steps"]), (0.25, 6))

    def test_settings_are_a_dictionary_a_list_or_a_text(self):
        expected = encore.Configuration(json=support.tiny, settings="train.steps=6 train.decay_all=true").text()
        as_dictionary = {"train.steps": 6, "train.decay_all": True}
        self.assertEqual(encore.Configuration(json=support.tiny, settings=as_dictionary).text(), expected)
        as_list = ["train.steps=6", "train.decay_all=true"]
        self.assertEqual(encore.Configuration(json=json.dumps(support.tiny), settings=as_list).text(), expected)
        self.assertEqual(str(encore.Configuration(json=expected)), expected)

    def test_errors_name_what_is_wrong_and_have_a_class_and_a_code(self):
        with self.assertRaisesRegex(encore.ConfigurationError, "tiny-launch") as raised:
            encore.Configuration(preset="tiny-lunch")
        self.assertEqual(raised.exception.code, 2)
        self.assertRegex(raised.exception.where, r"\.cpp:[0-9]+$")
        self.assertIsInstance(raised.exception, encore.Error)
        self.assertIsInstance(raised.exception, ValueError)
        with self.assertRaisesRegex(encore.InputFileError, "no.json"):
            encore.Configuration(file="no.json")
        with self.assertRaisesRegex(encore.ConfigurationError, "heads"):
            encore.Configuration(json=support.tiny, settings={"model.heads": 5}).text()

    def test_notes_tell_what_was_changed(self):
        self.assertEqual(encore.Configuration(json=support.tiny).notes(), [])
        noted = encore.Configuration(json=support.tiny, settings="graph.warmup_steps=0").notes()
        self.assertTrue(all(note.startswith("G-") for note in noted))

    def test_the_package_says_what_it_is(self):
        self.assertRegex(encore.__version__, r"^[0-9]+\.[0-9]+\.[0-9]+$")
        self.assertIn(support.backend, encore.backends())
        self.assertTrue(encore.git_revision)


if __name__ == "__main__":
    unittest.main()
