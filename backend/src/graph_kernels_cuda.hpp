// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

namespace encore::backend::impl {

/// Puts kernels in the place of the nodes that clear memory or copy it inside the device: on an H200 such a node holds
/// up a chain of kernels for 7 us, a kernel of the same work for 1. Vendor libraries record some as well.
/// Returns how many are left, such as copies of several rows. Throws CaptureError.
std::size_t replace_memory_nodes(cudaGraph_t graph, const std::string& name);

/// Nodes on the longest chain of which each waits for the one before.
std::size_t longest_chain(cudaGraph_t graph, const std::string& name);

}  // namespace encore::backend::impl
