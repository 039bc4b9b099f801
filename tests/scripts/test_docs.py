# SPDX-License-Identifier: Apache-2.0
"""The written documentation against the tree: links, paths, names, and the commands that it shows.

Commands of `encore` are checked where it is built: ENCORE_COMMAND, or build/host/bench/encore.
"""

import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(os.environ.get("ENCORE_COMMAND", ROOT / "build/host/bench/encore"))
FOLDERS = sorted(p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in ("build", "install") and p.name[0] != ".")
PLACEHOLDER = re.compile(r"^[A-Z][A-Z_]*$|<|\*|\.\.\.|\{|\$")


def pages():
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / line for line in tracked.stdout.split() if (ROOT / line).exists()]


def prose_and_blocks(text):
    """The text without fenced blocks, and those blocks as (language, lines)."""
    prose, blocks, block, language = [], [], None, ""
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            if block is None:
                block, language = [], line.strip()[3:]
            else:
                blocks.append((language, block))
                block = None
        elif block is None:
            prose.append(line)
        else:
            block.append(line)
    return "\n".join(prose), blocks


def slug(heading):
    """The anchor that a heading gets where Markdown is shown."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    heading = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return heading.replace(" ", "-")


def anchors(page):
    prose, _ = prose_and_blocks(page.read_text())
    found = {slug(m.group(1)) for m in re.finditer(r"^#+ +(.*)$", prose, re.M)}
    return found | set(re.findall(r'<a (?:name|id)="([^"]+)"', prose))


def inline_code(prose):
    return re.findall(r"`([^`\n]+)`", prose)


def joined(lines):
    """Command lines: continued ones joined, remarks cut off."""
    text = "\n".join(lines).replace("\\\n", " ")
    return [re.sub(r"\s+#.*$", "", line).strip() for line in text.split("\n")]


def shown_commands():
    """(page, words) of every command line in a block without a language or one of the shell."""
    for page in pages():
        if page.name == "CHANGELOG.md":
            continue
        prose, blocks = prose_and_blocks(page.read_text())
        lines = [line for language, block in blocks if language in ("", "sh", "bash", "shell") for line in joined(block)]
        lines += [code for code in inline_code(prose) if re.match(r"(encore|scripts/\w+) ", code)]
        for line in lines:
            line = re.sub(r"^(\$ |(?:[A-Z_]+=\S+ +)+|nohup |srun .*?(?=encore ))", "", line)
            for part in re.split(r"\s+(?:&&|\|\|?|;)\s+", line):
                try:
                    words = shlex.split(re.sub(r"\s[12]?>>?\s*\S+", "", part))
                except ValueError:
                    continue
                if words:
                    yield page.relative_to(ROOT), words


@functools.lru_cache
def flags_of(subcommand):
    done = subprocess.run([COMMAND, subcommand, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"--[A-Za-z_-]+|(?<=[ ,])-[a-z](?=[, ])", done.stdout))


@functools.lru_cache
def presets():
    done = subprocess.run([COMMAND, "info", "--json"], capture_output=True, text=True, check=True)
    return done.stdout


class Links(unittest.TestCase):
    def test_every_relative_link_leads_somewhere(self):
        for page in pages():
            prose, _ = prose_and_blocks(page.read_text())
            targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)", prose) + re.findall(r'(?:src|href)="([^"]+)"', prose)
            for target in targets:
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                file = (page.parent / name).resolve() if name else page
                with self.subTest(page=str(page.relative_to(ROOT)), link=target):
                    self.assertTrue(file.exists(), "there is no such file")
                    if anchor:
                        self.assertIn(anchor, anchors(file), "there is no such heading")

    def test_every_page_of_the_documentation_is_listed_in_its_index(self):
        index = (ROOT / "docs/README.md").read_text()
        for page in sorted((ROOT / "docs").rglob("*.md")):
            name = str(page.relative_to(ROOT / "docs"))
            if name not in ("README.md", "api.md"):
                with self.subTest(page=name):
                    self.assertIn(f"({name})", index)


class Names(unittest.TestCase):
    def test_every_path_that_is_named_exists(self):
        ignored = subprocess.run(["git", "check-ignore", "-q", "build/any"], cwd=ROOT).returncode == 0
        self.assertTrue(ignored, "build/ is taken to be outside of the tree")
        for page in pages():
            if page.name == "CHANGELOG.md":
                continue  # tells of what was
            prose, _ = prose_and_blocks(page.read_text())
            for code in inline_code(prose):
                path = code.split(":")[0].rstrip("/")
                first = path.split("/")[0]
                if first not in FOLDERS or "/" not in code or " " in path or PLACEHOLDER.search(path):
                    continue
                if any(PLACEHOLDER.search(pathlib.PurePath(part).stem) for part in path.split("/")):
                    continue
                with self.subTest(page=str(page.relative_to(ROOT)), path=code):
                    # beside the page, or an include path
                    places = [ROOT, page.parent] + [ROOT / folder / "include" for folder in FOLDERS]
                    self.assertTrue(any((place / path).exists() for place in places), "there is no such file")

    def test_every_configuration_key_and_rule_that_is_named_exists(self):
        keys = set(re.findall(r"^\| `([a-z]+\.[a-z_0-9]+)`", (ROOT / "docs/configuration.md").read_text(), re.M))
        rules = set(re.findall(r"^\| ([A-Z]-\d+) \|", (ROOT / "docs/refusals.md").read_text(), re.M))
        self.assertGreater(len(keys), 40)
        self.assertGreater(len(rules), 30)
        for page in pages():
            if page.name in ("CHANGELOG.md", "configuration.md", "refusals.md"):
                continue
            prose, blocks = prose_and_blocks(page.read_text())
            shell = " ".join(line for language, block in blocks if language != "cpp" for line in block)
            for code in inline_code(prose) + re.findall(r"--set (\S+)", shell):
                for key in re.findall(r"^(?:--set )?((?:model|train|graph|parallel)\.[a-z_0-9]+)(?![a-z_0-9(/.*])", code):
                    if key.split(".")[1] not in ("hpp", "cpp", "safetensors", "md"):
                        with self.subTest(page=str(page.relative_to(ROOT)), key=key):
                            self.assertIn(key, keys)
            for rule in re.findall(r"\b([GRN]-\d\d)\b", prose):
                with self.subTest(page=str(page.relative_to(ROOT)), rule=rule):
                    self.assertIn(rule, rules)

    def test_every_symbol_and_option_that_is_named_exists(self):
        sources = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in (".hpp", ".h", ".py", ".cpp")]
        words = set()
        for source in sources:
            if "tests/scripts" not in str(source):
                # without remarks, where any word may stand
                words |= set(re.findall(r"\w+", re.sub(r"//.*", "", source.read_text(errors="replace"))))
        build = [ROOT / "CMakeLists.txt", ROOT / "CMakePresets.json"]
        build += [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in (".cmake", ".in", ".bash")]
        build += [p for folder in FOLDERS for p in (ROOT / folder).rglob("CMakeLists.txt")]
        build += [p for p in (ROOT / "scripts").iterdir() if p.is_file()]
        for file in build:
            words |= set(re.findall(r"\w+", file.read_text(errors="replace")))
        for page in pages():
            if page.name == "CHANGELOG.md":
                continue
            text = page.read_text()
            for name in re.findall(r"\bencore::([\w:]+)", text) + re.findall(r"\b(ENCORE_[A-Z_]*[A-Z])\b", text):
                for part in name.strip(":").split("::"):
                    with self.subTest(page=str(page.relative_to(ROOT)), name=name):
                        self.assertIn(part, words)


class Commands(unittest.TestCase):
    def test_every_script_and_preset_that_is_shown_exists(self):
        described = json.loads((ROOT / "CMakePresets.json").read_text())
        known = {p["name"] for p in described["configurePresets"] + described["workflowPresets"] if not p.get("hidden")}
        seen = 0
        for page, words in shown_commands():
            with self.subTest(page=str(page), command=" ".join(words)):
                if words[0].startswith(("scripts/", "./scripts/")):
                    seen += 1
                    self.assertTrue(os.access(ROOT / words[0], os.X_OK), "there is no such script")
                elif words[0] in ("cmake", "ctest") and "--preset" in words:
                    seen += 1
                    self.assertIn(words[words.index("--preset") + 1], known)
        self.assertGreater(seen, 5)

    @unittest.skipUnless(COMMAND.exists(), f"{COMMAND} is not built")
    def test_every_command_that_is_shown_is_understood(self):
        seen = 0
        for page, words in shown_commands():
            if pathlib.PurePath(words[0]).name != "encore" or len(words) < 2 or PLACEHOLDER.search(words[1]):
                continue
            seen += 1
            with self.subTest(page=str(page), command=" ".join(words)):
                self.understood(words)
        self.assertGreater(seen, 20)

    def understood(self, words):
        if words[0] == "scripts/encore" and words[1].startswith("-"):
            words = [words[0], "train", *words[1:]]
        if words[1] in ("--version", "--help"):
            return
        flags = flags_of(words[1])
        check = [COMMAND, "info"]
        for i, word in enumerate(words[2:], 2):
            flag, _, value = word.partition("=")
            if not flag.startswith("-") or re.match(r"^-\d", flag):
                continue
            self.assertIn(flag, flags, f"`encore {words[1]}` has no such flag")
            value = value or (words[i + 1] if i + 1 < len(words) else "")
            if flag in ("--preset", "--set") or "cuda_graph" in flag or "cuda-graph" in flag:
                if not any(PLACEHOLDER.search(part) for part in re.split(r"[=,]", value)):
                    check += [flag, value]
        if "--preset" not in check:
            check += ["--preset", "bytes"] if any(word in check for word in ("--set",)) else []
        done = subprocess.run(check, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class Programs(unittest.TestCase):
    """Blocks of C++ that are whole files; those of CONTRIBUTING.md belong together."""

    BUILD = ROOT / "build/host/compile_commands.json"

    @unittest.skipUnless(BUILD.exists(), "build/host is not configured")
    def test_every_program_that_is_shown_compiles(self):
        entries = json.loads(self.BUILD.read_text())
        words = next(shlex.split(e["command"]) for e in entries if e["file"].endswith("kernels/test_residual.cpp"))
        options = [w for i, w in enumerate(words) if w.startswith(("-I", "-D", "-std", "-f")) and words[i - 1] != "-o"]
        options += [f"-isystem{words[i + 1]}" for i, w in enumerate(words) if w == "-isystem"]
        seen = 0
        with tempfile.TemporaryDirectory() as folder:
            for page in pages():
                for language, block in prose_and_blocks(page.read_text())[1]:
                    text = "\n".join(block)
                    whole = re.search(r"^\s*(int main\(|namespace \w+|TEST_CASE|template <)", text, re.M)
                    if language != "cpp" or "#include <encore/" not in text or not whole:
                        continue
                    seen += 1
                    declared = re.search(r"^\s*void (\w+)\(", text, re.M)
                    header = "#pragma once" in text
                    file = pathlib.Path(folder, f"encore/kernels/{declared[1]}.hpp" if header else f"{seen}.cpp")
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text)
                    command = ["g++", "-fsyntax-only", "-x", "c++", "-Wall", "-Wextra", f"-I{folder}", *options]
                    command += [f"-I{ROOT}/{library}/include" for library in ("backend", "kernels", "graph", "model")]
                    command += [f"-I{ROOT}/{part}" for part in ("kernels/src", "tests", "tests/support")]
                    with self.subTest(page=str(page.relative_to(ROOT)), block=block[1] or block[2]):
                        done = subprocess.run([*command, file], capture_output=True, text=True)
                        errors = [line for line in done.stderr.split("\n") if "pragma once in main file" not in line]
                        self.assertEqual(done.returncode, 0, "\n".join(errors)[:2000])
        self.assertGreater(seen, 3)


if __name__ == "__main__":
    unittest.main()
