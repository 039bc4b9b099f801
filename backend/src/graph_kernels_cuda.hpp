// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace encore::backend::impl {

/// Puts kernels in the place of the nodes that clear memory or copy it inside the device: on an H200 such a node holds
/// up a chain of kernels for 7 us, a kernel of the same work for 1. Vendor libraries record some as well.
/// Throws CaptureError.
void replace_memory_nodes(cudaGraph_t graph, const std::string& name);

}  // namespace encore::backend::impl
