# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Where the CUDA compiler is, and whether there is a GPU to run on.

find_nvcc() {
  local candidate
  for candidate in "$(command -v nvcc || true)" "${CUDA_HOME:-}/bin/nvcc" "${CUDA_PATH:-}/bin/nvcc" \
    /usr/local/cuda/bin/nvcc; do
    if [[ -n $candidate && -x $candidate ]]; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

gpu_visible() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }
