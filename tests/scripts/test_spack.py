# SPDX-License-Identifier: Apache-2.0
"""The Spack recipe executed against small stand-ins for Spack's API, and against what it describes: CMake's options and
versions, scripts/setup, README and documentation. Where ENCORE_TEST_PREFIX names an installation, the recipe's own tests
run on it."""

import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest
import unittest.mock

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/scripts"))
import spack_stand_ins as spack  # noqa: E402

REPOSITORY = ROOT / "spack/spack_repo/encore"
Encore = spack.load(REPOSITORY / "packages/encore/package.py")
CMAKE = (ROOT / "CMakeLists.txt").read_text()
CUDA = "+cuda cuda_arch=90"
ENGINES = ("openblas", "pcre2", "utf8proc", "cudnn", "nccl", "mpi", "cutlass")


def text_of(*patterns):
    return "\n".join(path.read_text() for pattern in patterns for path in sorted(ROOT.glob(pattern)))


def arguments(text, run_tests=False):
    spec = spack.concretize(Encore, text)
    spec.dependencies["kokkos"].prefix = spack.Prefix("/kokkos")
    package = Encore(spec)
    package.run_tests = run_tests
    return dict(re.fullmatch(r"-D(\w+):\w+=(.*)", argument).groups() for argument in package.cmake_args())


def asked(text):
    """What a spec asks of its dependencies, by their names."""
    return spack.concretize(Encore, text).dependencies


def variants():
    own = [facts for kind, facts in Encore.__dict__["directives"] if kind == "variant"]
    return {facts["name"]: facts for facts in own}


class Specs(unittest.TestCase):
    def refused(self, text, because, **more):
        with self.assertRaisesRegex(spack.Refused, because):
            spack.concretize(Encore, text, **more)

    def test_the_default_is_a_shared_host_build_with_the_command(self):
        self.assertEqual(
            arguments(""),
            {
                "CMAKE_INSTALL_LIBDIR": "lib",
                "Kokkos_ROOT": "/kokkos",
                "BUILD_SHARED_LIBS": "ON",
                "ENCORE_ENABLE_TOOLS": "ON",
                "ENCORE_ENABLE_BENCHMARKS": "OFF",
                "ENCORE_ENABLE_TESTS": "OFF",
                "ENCORE_ENABLE_C_API": "OFF",
                "ENCORE_ENABLE_PYTHON": "OFF",
                "ENCORE_ENABLE_OPENBLAS": "ON",
                "ENCORE_ENABLE_PCRE2": "ON",
                "ENCORE_ENABLE_UTF8PROC": "ON",
                "ENCORE_ENABLE_CUDNN": "OFF",
                "ENCORE_ENABLE_NCCL": "OFF",
                "ENCORE_ENABLE_MPI": "OFF",
                "ENCORE_ENABLE_CUTLASS": "OFF",
                "ENCORE_REQUIRE_CUDA": "OFF",
            },
        )

    def test_tests_are_built_when_spack_runs_them(self):
        self.assertEqual(arguments("", run_tests=True)["ENCORE_ENABLE_TESTS"], "ON")
        self.assertIn("test", asked("")["doctest"].types)

    def test_every_engine_of_a_gpu_can_be_asked_for(self):
        on = arguments(f"{CUDA} +cudnn +nccl +cutlass")
        self.assertEqual([on[f"ENCORE_ENABLE_{e.upper()}"] for e in ("cudnn", "nccl", "cutlass")], ["ON"] * 3)
        self.assertEqual(on["ENCORE_REQUIRE_CUDA"], "ON")

    def test_each_variant_changes_the_build(self):
        def build(text):
            spec = spack.concretize(Encore, text)
            needs = {name: (sorted(d.ranges), d.variants) for name, d in spec.dependencies.items()}
            return arguments(text), needs

        for name, facts in variants().items():
            base = CUDA if any(condition.variants.get("cuda") for condition in facts["when"]) else ""
            texts = ("+cuda cuda_arch=80", CUDA) if name == "cuda_arch" else (f"{base} +{name}", f"{base} ~{name}")
            with self.subTest(variant=name):
                self.assertNotEqual(build(texts[0]), build(texts[1]))

    def test_the_compiler_is_not_set(self):
        for text in ("", CUDA):
            self.assertFalse([name for name in arguments(text) if name.endswith("_COMPILER")])

    def test_shared_libraries_need_position_independent_kokkos(self):
        self.assertTrue(asked("+shared")["kokkos"].variants["pic"])
        self.assertNotIn("pic", asked("~shared")["kokkos"].variants)

    def test_the_python_module_needs_it_too(self):
        self.assertTrue(asked("~shared +python")["kokkos"].variants["pic"])

    def test_kokkos_gets_the_backends(self):
        self.assertTrue(asked("+openmp")["kokkos"].variants["openmp"])
        self.assertFalse(asked("~openmp")["kokkos"].variants["openmp"])
        gpu = asked(CUDA)["kokkos"].variants
        self.assertTrue(gpu["cuda"] and gpu["serial"] and gpu["cuda_lambda"])
        self.assertEqual((gpu["cuda_arch"], gpu["cxxstd"]), ("90", "20"))

    def test_one_plain_architecture_is_named(self):
        self.refused("+cuda", "Name the GPU's architecture, as in cuda_arch=90")
        self.refused("+cuda cuda_arch=80,90", "cannot be 80,90")
        self.refused("+cuda cuda_arch=90a", "use cuda_arch=90$")
        self.refused("+cuda cuda_arch=100f", "use cuda_arch=100$")
        self.refused("+cuda cuda_arch=70", "not on 70")
        self.refused("cuda_arch=90", "no variant cuda_arch here")

    def test_cutlass_is_for_hopper_alone(self):
        self.refused("+cuda cuda_arch=80 +cutlass", "no variant cutlass here")
        self.refused("+nccl", "no variant nccl here")

    def test_versions_that_do_not_work_are_refused(self):
        self.refused("", "kokkos 4.6.02", versions={"kokkos": "4.6.02"})
        self.refused("", "kokkos 5.0.0", versions={"kokkos": "5.0.0"})
        self.refused(CUDA, "kokkos 4.7.00", versions={"kokkos": "4.7.00"})
        self.refused(CUDA, "cuda 12.9.1", versions={"cuda": "12.9.1"})
        self.refused("", "GCC 12", compiler="gcc@11.4.0")
        spack.concretize(Encore, "", versions={"kokkos": "4.7.00"})
        spack.concretize(Encore, CUDA, versions={"kokkos": "4.7.02", "cuda": "13.0.88"})

    def test_gcc_needs_the_wrapper_in_kokkos_and_never_the_language(self):
        self.assertTrue(asked(CUDA)["kokkos"].variants["wrapper"])
        self.assertFalse(asked(CUDA)["kokkos"].variants["cmake_lang"])
        clang = spack.concretize(Encore, CUDA, compiler="llvm@20.1.0").dependencies["kokkos"]
        self.assertNotIn("wrapper", clang.variants)


class Phases(unittest.TestCase):
    def package_with_settings(self, text, **changed):
        spec = spack.concretize(Encore, text)
        prefix = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, prefix)
        template = (ROOT / "cmake/EncoreSettings.cmake.in").read_text()
        for engine in Encore.engines:
            state = changed.get(engine, "TRUE" if spec.satisfies(f"+{engine}") else "OFF")
            template = template.replace(f"@ENCORE_HAVE_{engine.upper()}@", state)
        folder = pathlib.Path(prefix, "lib/cmake/Encore")
        folder.mkdir(parents=True)
        (folder / "EncoreSettings.cmake").write_text(template)
        return Encore(spec, prefix)

    def test_an_engine_that_cmake_did_not_find_ends_the_installation(self):
        for text in ("", f"{CUDA} +cudnn +nccl +cutlass"):
            self.package_with_settings(text).check_engines()
        with self.assertRaisesRegex(spack.InstallError, "openblas was not found by CMake"):
            self.package_with_settings("", openblas="FALSE").check_engines()
        with self.assertRaisesRegex(spack.InstallError, "cudnn was found by CMake"):
            self.package_with_settings(CUDA, cudnn="TRUE").check_engines()

    def test_every_engine_in_the_settings_is_checked(self):
        settings = (ROOT / "cmake/EncoreSettings.cmake.in").read_text()
        self.assertEqual({e.lower() for e in re.findall(r"Encore_HAVE_(\w+) ", settings)}, set(Encore.engines))

    def test_the_consumer_is_kept_for_later_and_has_the_programs_that_are_run(self):
        package = Encore(spack.concretize(Encore))
        package.keep_consumer()
        self.assertEqual(package.kept, ["tests/consumer"])
        programs = re.search(r"for program in \((.*?)\):", (REPOSITORY / "packages/encore/package.py").read_text())[1]
        built = re.findall(r"add_executable\((\w+) ", (ROOT / "tests/consumer/CMakeLists.txt").read_text())
        self.assertEqual(re.findall(r'"(\w+)"', programs), built)

    def test_headers_only_recipe_installs_its_headers(self):
        frontend = spack.load(REPOSITORY / "packages/cudnn_frontend/package.py")
        with tempfile.TemporaryDirectory() as folder, spack.working_dir(folder):
            os.makedirs("include/cudnn_frontend")
            frontend(spack.concretize(frontend)).install(None, spack.Prefix(os.path.join(folder, "prefix")))
            self.assertTrue(os.path.isdir("prefix/include/cudnn_frontend"))


@unittest.skipUnless("ENCORE_TEST_PREFIX" in os.environ, "names no installation")
class Installed(unittest.TestCase):
    """What Spack runs after an installation, on a real one."""

    def package(self):
        prefix = os.environ["ENCORE_TEST_PREFIX"]
        # scripts/test uses MPI where it is; everything else is as the recipe has it.
        settings = pathlib.Path(prefix, "lib/cmake/Encore/EncoreSettings.cmake").read_text()
        spec = spack.concretize(Encore, "+mpi" if re.search(r"Encore_HAVE_MPI (ON|TRUE)", settings) else "")
        cmake = pathlib.Path(shutil.which("cmake")).parents[1]
        spec.dependencies["cmake"].prefix = spack.Prefix(cmake)
        package = Encore(spec, prefix)
        package.test_suite = unittest.mock.Mock(current_test_cache_dir=str(ROOT))
        return package

    def test_sanity(self):
        for path in Encore.sanity_check_is_file:
            self.assertTrue(os.path.isfile(os.path.join(os.environ["ENCORE_TEST_PREFIX"], path)), path)
        self.package().check_engines()

    def test_command(self):
        self.package().test_command()

    def test_consumer(self):
        with tempfile.TemporaryDirectory() as folder, spack.working_dir(folder):
            with unittest.mock.patch.dict(os.environ, {"CXX": os.environ.get("CXX", shutil.which("g++"))}):
                self.package().test_consumer()


class Agreement(unittest.TestCase):
    def test_options(self):
        options = set(re.findall(r"option\((ENCORE_\w+) ", CMAKE))
        for_developers = {"ENCORE_INSTALL", "ENCORE_WARNINGS_AS_ERRORS"}
        described = set(Encore.switches) - {"BUILD_SHARED_LIBS"} | {"ENCORE_ENABLE_TESTS"}
        self.assertEqual(options - for_developers, described)
        self.assertLessEqual(set(Encore.switches.values()), set(variants()) | {"cuda"})

    def test_lowest_versions(self):
        files = text_of("CMakeLists.txt", "cmake/*.cmake", "bench/CMakeLists.txt", "tests/CMakeLists.txt", "bindings/*/CMakeLists.txt")
        needed = {
            name.lower().replace("_", "-").replace("encore", "").replace("nanobind", "py-nanobind"): version
            for name, version in re.findall(r"find_package\((\w+) (\d[\d.]*) ", files)
        }
        needed["kokkos"] = re.search(r"Kokkos_Version VERSION_LESS ([\d.]+)", files, re.I)[1]
        needed["cmake"] = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", CMAKE)[1]
        dependencies = asked(f"{CUDA} +benchmarks +tests +python +cutlass +cudnn +nccl +mpi")
        for name, version in needed.items():
            with self.subTest(dependency=name):
                lowest = [asked_for.split(":")[0] for asked_for in dependencies[name].ranges]
                self.assertIn(version, lowest)

    def test_what_setup_installs_is_in_range(self):
        pinned = dict(re.findall(r"^(\S+) +(?:\d+:)?([\d.]+)", text_of("scripts/packages*.txt"), re.M))
        names = {
            "cmake": "cmake",
            "libfmt-dev": "fmt",
            "nlohmann-json3-dev": "nlohmann-json",
            "libcli11-dev": "cli11",
            "libpcre2-dev": "pcre2",
            "libutf8proc-dev": "utf8proc",
            "doctest-dev": "doctest",
            "libbenchmark-dev": "benchmark",
        }
        versions = {ours: pinned[theirs] for theirs, ours in names.items()}
        versions["python"] = pinned["python3-dev"]
        versions["py-nanobind"] = re.search(r"nanobind ([\d.]+)", text_of("scripts/setup"))[1]
        versions["kokkos"] = re.search(r"kokkos-(\d[\d.]+)", text_of("scripts/lib/setup.bash"))[1]
        setup = text_of("scripts/setup")
        spack.concretize(Encore, "+benchmarks +tests +python", versions=versions)
        versions = {"cutlass": re.search(r"nvidia-cutlass ([\d.]+)", setup)[1]}
        versions["cudnn-frontend"] = re.search(r"nvidia-cudnn-frontend ([\d.]+)", setup)[1]
        spack.concretize(Encore, f"{CUDA} +cudnn +cutlass", versions=versions)
        frontend = spack.load(REPOSITORY / "packages/cudnn_frontend/package.py")
        self.assertIn(versions["cudnn-frontend"], [facts["name"] for facts in frontend.all_directives("version")])

    def test_architectures_are_among_those_that_setup_knows(self):
        function = re.search(r"kokkos_architecture\(\).*?^}", text_of("scripts/lib/setup.bash"), re.M | re.S)[0]
        self.assertLessEqual(set(Encore.architectures), set(re.findall(r"^ +(\d+)\) echo", function, re.M)))

    def test_the_readme_names_the_same_versions(self):
        readme = " ".join(text_of("README.md").split())
        self.assertRegex(readme, r"CMake 3\.25 or newer")
        self.assertRegex(readme, r"Kokkos 4\.7 or newer")
        self.assertRegex(readme, r"CUTLASS 4\.2 headers")

    def test_releases(self):
        number = re.search(r"project\(Encore VERSION ([\d.]+)", CMAKE)[1]
        released = re.findall(r"^## (\d[\d.]*)", text_of("CHANGELOG.md"), re.M)
        recipe = [facts for facts in Encore.all_directives("version") if facts["name"] != "main"]
        self.assertEqual([facts["name"] for facts in recipe], released)
        self.assertTrue(all(facts["fixed"] for facts in recipe), "a release needs its checksum")
        for found in re.findall(r"find_package\(Encore (\d[\d.]*)", text_of("README.md", "docs/**/*.md", "tests/consumer/**/CMakeLists.txt")):
            self.assertTrue(spack.in_range(number, found), found)

    def test_the_repository_is_found_from_the_root(self):
        index = yaml.safe_load((ROOT / "spack-repo-index.yaml").read_text())
        self.assertEqual([ROOT / path for path in index["repo_index"]["paths"]], [REPOSITORY])
        repo = yaml.safe_load((REPOSITORY / "repo.yaml").read_text())["repo"]
        self.assertEqual((repo["namespace"], repo["api"]), (REPOSITORY.name, "v2.2"))
        self.assertEqual(Encore.git, ROOT.as_uri())

    def test_environments(self):
        files = sorted((ROOT / "spack/envs").glob("*/spack.yaml"))
        self.assertTrue(files)
        for file in files:
            with self.subTest(environment=file.parent.name):
                spack_yaml = yaml.safe_load(file.read_text())["spack"]
                self.assertEqual((file.parent / spack_yaml["repos"]["encore"]).resolve(), REPOSITORY)
                self.assertEqual((file.parent / spack_yaml["develop"]["encore"]["path"]).resolve(), ROOT)
                versions = {}
                for name in spack_yaml.get("include", []):
                    packages = yaml.safe_load((file.parent / name).read_text())["packages"]
                    for package in packages.values():
                        external = spack.Constraint(package["externals"][0]["spec"])
                        versions[external.name] = external.versions[0]
                for text in spack_yaml["specs"]:
                    spack.concretize(Encore, text, versions=versions)

    def test_the_page_on_installing_describes_each_variant_and_option(self):
        page = text_of("docs/install.md")
        table = set(re.findall(r"^\| `(?:[+~])?(\w+)(?:=\w*)?`", page, re.M))
        cells = set(re.findall(r"`(ENCORE_\w+|BUILD_SHARED_LIBS)`", page))
        self.assertLessEqual(set(variants()) | {"cuda"}, table)
        options = set(re.findall(r"(?:option|set)\((ENCORE_(?:ENABLE|INSTALL|REQUIRE|WARNINGS|HOST_ARCH|SANITIZE)\w*)", CMAKE))
        self.assertLessEqual(options | set(Encore.switches), cells)


if __name__ == "__main__":
    unittest.main()
