// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>
#include <encore/kernels/types.hpp>

#include <Kokkos_Array.hpp>

namespace encore::kernels {

/// A box of up to three dimensions and the distances, in elements, between its neighbours in two arrays. Dimensions that
/// are not used come first, with extent 1.
struct BoxShape {
  Kokkos::Array<std::int64_t, 3> extents{1, 1, 1};
  Kokkos::Array<std::int64_t, 3> from{0, 0, 0};
  Kokkos::Array<std::int64_t, 3> to{0, 0, 0};

  BoxShape reversed() const { return {extents, to, from}; }
  std::int64_t elements() const { return extents[0] * extents[1] * extents[2]; }
};

/// Copies the elements of a box bit by bit; both pointers are those of its first element, of that type and on the
/// device. They must not overlap. May be captured.
template <class Space>
void copy_box(Stream<Space>& stream, const std::byte* from, std::byte* to, const BoxShape& shape,
              backend::DataType type);

}  // namespace encore::kernels
