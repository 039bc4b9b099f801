# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Configuring and building a preset, quietly unless it fails. The caller sets root.

# shellcheck source=scripts/lib/cuda.bash
source "$root/scripts/lib/cuda.bash"

default_preset() {
  if find_nvcc >/dev/null && gpu_visible; then echo cuda; else echo host; fi
}

quietly() { # log-file command...; the log's end on standard error when the command fails
  local log=$1
  shift
  if "$@" >"$log" 2>&1; then return 0; fi
  tail -n 60 "$log" >&2
  echo "failed: $*" >&2
  return 1
}

configure() { # preset [cmake option...]
  local nvcc
  if command -v ccache >/dev/null; then
    # Paths below the checkout count as relative ones: another checkout finds the same entries.
    export ENCORE_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
  fi
  if [[ $1 == cuda ]] && nvcc=$(find_nvcc); then PATH=$(dirname "$nvcc"):$PATH; fi
  mkdir -p "$root/build"
  (cd "$root" && quietly "build/$1-configure.log" cmake --preset "$@")
}

build() { # preset [target...]
  local preset=$1 nvcc
  shift
  if [[ $preset == cuda ]] && command -v ccache >/dev/null && nvcc=$(find_nvcc); then
    # Kokkos' compiler wrapper takes no compiler launcher, but it does take its nvcc from here.
    export ENCORE_NVCC=$nvcc CUDA_ROOT=$root/scripts/lib/ccache-nvcc
  fi
  echo "building ${*:-everything} ($preset) ..." >&2
  (cd "$root" && quietly "build/$preset-build.log" cmake --build "build/$preset" ${1:+--target "$@"})
}
