# SPDX-License-Identifier: Apache-2.0
from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class CudnnFrontend(Package):
    """The C++ headers over cuDNN's graphs of operations, which Encore's attention by cuDNN is
    compiled with. Spack's own packages have no recipe for them."""

    homepage = "https://github.com/NVIDIA/cudnn-frontend"
    git = "https://github.com/NVIDIA/cudnn-frontend.git"

    license("MIT")

    # The version that scripts/setup brings.
    version("1.32.0", tag="v1.32.0")

    depends_on("cudnn@9:")

    def install(self, spec, prefix):
        install_tree("include", prefix.include)
