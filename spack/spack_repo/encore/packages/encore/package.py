# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import re

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


# ROCmPackage is not among the bases, because Encore has no HIP back end.
class Encore(CMakePackage, CudaPackage):
    """Transformer and state space layer kernels, forward and backward, on Kokkos views, and
    training steps that are recorded once and replayed: as CUDA graphs on a GPU, as one parallel
    region on a CPU."""

    # The repository that this recipe came in, wherever it was cloned from.
    git = pathlib.Path(__file__).resolve().parents[5].as_uri()
    homepage = git

    test_requires_compiler = True

    license("Apache-2.0")

    version("main", branch="main")

    # What each of these changes in the build is the CMake option of the same name.
    variant("shared", default=True, description="Build shared libraries")
    variant("openmp", default=True, description="Run on host threads")
    variant("tools", default=True, description="Install the command encore")
    variant("benchmarks", default=False, description="Install the benchmark programs")
    variant("tests", default=False, description="Build the tests")
    variant("c_api", default=False, description="Install the C API")
    variant("python", default=False, description="Install the Python module")
    variant("openblas", default=True, description="Matrix products on hosts by OpenBLAS")
    variant("pcre2", default=True, description="Tokenizers, by PCRE2")
    variant("utf8proc", default=True, description="Tokenizers that normalize text, by utf8proc")
    variant("cudnn", default=False, when="+cuda", description="Attention by cuDNN")
    variant("mpi", default=False, description="Communication between processes by MPI")
    variant("nccl", default=False, when="+cuda", description="Communication by NCCL")
    variant(
        "cutlass",
        default=False,
        when="+cuda cuda_arch=90",
        description="Grouped products and attention by Hopper's own instructions",
    )
    # One, because Kokkos is built for one.
    variant(
        "cuda_arch",
        default="none",
        values=("none",) + CudaPackage.cuda_arch_values,
        multi=False,
        sticky=True,
        when="+cuda",
        description="CUDA architecture",
    )

    generator("ninja")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("fmt@9")
    depends_on("nlohmann-json@3.10:3", type="build")
    depends_on("cli11@2.1:2", type="build", when="+tools")
    depends_on("cli11@2.1:2", type="build", when="+benchmarks")
    depends_on("benchmark@1.7:1 ~performance_counters", when="+benchmarks")
    depends_on("doctest@2.4:2", type="build", when="+tests")
    depends_on("doctest@2.4:2", type="test")
    extends("python@3.10:", when="+python")
    depends_on("py-nanobind@3.1:3", type="build", when="+python")
    depends_on("py-numpy", type="run", when="+python")
    # Each product spreads its tiles over threads by itself, whose calls need this build's locks.
    depends_on("openblas threads=pthreads", when="+openblas")
    depends_on("pcre2@10.30:10", when="+pcre2")
    depends_on("utf8proc@2", when="+utf8proc")

    # C++20 there too: some of its types differ in layout.
    depends_on("kokkos@4.7:4 +serial cxxstd=20")
    depends_on("kokkos+openmp", when="+openmp")
    depends_on("kokkos~openmp", when="~openmp")
    depends_on("kokkos+pic", when="+shared")
    depends_on("kokkos+pic", when="+python")

    with when("+cuda"):
        # The views of 4.7.00 are miscompiled by this nvcc.
        depends_on("kokkos@4.7.01: +cuda_lambda ~cmake_lang")
        # Older ones have not been tried.
        depends_on("cuda@13:")
        # The compiler is not set: Kokkos' launch compiler hands each file to nvcc by itself.
        requires("^kokkos+wrapper", when="%cxx=gcc")
        conflicts("cuda_arch=none", msg="Name the GPU's architecture, as in cuda_arch=90")
    depends_on("mpi@3:", when="+mpi")
    depends_on("cudnn@9:", when="+cudnn")
    depends_on("cudnn-frontend@1.32:1", type="build", when="+cudnn")
    depends_on("cutlass@4.2:4 cuda_arch=90", type="build", when="+cutlass")

    architectures = ("80", "86", "89", "90", "100", "120")
    for arch in CudaPackage.cuda_arch_values:
        if arch in architectures:
            depends_on(f"kokkos+cuda cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
            depends_on(f"nccl cuda_arch={arch}", when=f"+nccl cuda_arch={arch}")
        elif arch[-1].isdigit():
            conflicts(
                f"cuda_arch={arch}",
                when="+cuda",
                msg=f"Encore's kernels run on {', '.join(architectures)}; not on {arch}",
            )
        else:
            # Kokkos' recipe knows plain numbers only, and would fail at the end.
            conflicts(
                f"cuda_arch={arch}",
                when="+cuda",
                msg=f"Kokkos knows no {arch}: use cuda_arch={arch[:-1]}",
            )

    conflicts("%cxx=gcc@:11", msg="Encore is C++20 and is built with GCC 12 and newer")

    sanity_check_is_file = [
        join_path("include", "encore", "backend", "version.hpp"),
        join_path("include", "encore", "model", "trainer.hpp"),
        join_path("lib", "cmake", "Encore", "EncoreConfig.cmake"),
    ]

    # CMake options that are a variant, and nothing else.
    switches = {
        "BUILD_SHARED_LIBS": "shared",
        "ENCORE_ENABLE_TOOLS": "tools",
        "ENCORE_ENABLE_BENCHMARKS": "benchmarks",
        "ENCORE_ENABLE_C_API": "c_api",
        "ENCORE_ENABLE_PYTHON": "python",
        "ENCORE_ENABLE_OPENBLAS": "openblas",
        "ENCORE_ENABLE_PCRE2": "pcre2",
        "ENCORE_ENABLE_UTF8PROC": "utf8proc",
        "ENCORE_ENABLE_CUDNN": "cudnn",
        "ENCORE_ENABLE_MPI": "mpi",
        "ENCORE_ENABLE_NCCL": "nccl",
        "ENCORE_ENABLE_CUTLASS": "cutlass",
        "ENCORE_REQUIRE_CUDA": "cuda",
    }
    engines = ("cuda", "openblas", "pcre2", "utf8proc", "cudnn", "nccl", "mpi", "cutlass")

    def cmake_args(self):
        spec = self.spec
        return [
            self.define("CMAKE_INSTALL_LIBDIR", "lib"),
            self.define("Kokkos_ROOT", spec["kokkos"].prefix),
            self.define("ENCORE_ENABLE_TESTS", self.run_tests or spec.satisfies("+tests")),
        ] + [self.define(option, spec.satisfies(f"+{v}")) for option, v in self.switches.items()]

    @run_after("install")
    def check_engines(self):
        """CMake goes on without an engine that it does not find; a spec must not."""
        settings = join_path(self.prefix.lib, "cmake", "Encore", "EncoreSettings.cmake")
        with open(settings) as file:
            built = dict(re.findall(r"set\(Encore_HAVE_(\w+) (\w+)\)", file.read()))
        for engine in self.engines:
            found = built[engine.upper()] in ("ON", "TRUE", "1")
            if found != self.spec.satisfies(f"+{engine}"):
                raise InstallError(f"{engine} was {'' if found else 'not '}found by CMake")

    consumer = join_path("tests", "consumer")

    @run_after("install")
    def keep_consumer(self):
        """A project that uses Encore, for test_consumer."""
        cache_extra_test_sources(self, self.consumer)

    def test_command(self):
        """the installed command tells its version"""
        if self.spec.satisfies("~tools"):
            raise SkipTest("the command is not installed without +tools")
        encore = which(join_path(self.prefix.bin, "encore"), required=True)
        out = encore("--version", output=str.split, error=str.split)
        check_outputs(r"encore \d+\.\d+\.\d+ \(\w", out)

    def test_consumer(self):
        """a simulation builds against the installed libraries, and runs"""
        source = join_path(self.test_suite.current_test_cache_dir, self.consumer)
        cmake = which(join_path(self.spec["cmake"].prefix.bin, "cmake"), required=True)
        with working_dir("consumer", create=True):
            cmake(
                source,
                self.define("CMAKE_BUILD_TYPE", "Release"),
                self.define("CMAKE_CXX_COMPILER", os.environ["CXX"]),
                self.define("CMAKE_PREFIX_PATH", get_cmake_prefix_path(self)),
                self.define("Encore_ROOT", self.prefix),
            )
            cmake("--build", ".")
            # Login nodes have no GPU: there, linking is all that can be seen.
            if self.spec.satisfies("~cuda") or which("nvidia-smi"):
                for program in ("heat", "reaction_diffusion"):
                    which(f"./{program}", required=True)()
