// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>
#include <encore/backend/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace encore::kernels {

/// What a checksum tells of the arrays it went over. Every number is a sum or a maximum of integers, so neither the
/// order nor the number of threads changes it.
struct Checksum {
  std::uint64_t hash = 0;        ///< sum of a mix of each element's bits and place: any other bit changes it
  std::uint64_t non_finite = 0;  ///< elements that are infinite or not a number
  std::uint64_t largest_bits = 0;  ///< bits of the largest finite magnitude as a float64
  std::uint64_t elements = 0;
  friend bool operator==(const Checksum&, const Checksum&) = default;
};

struct ChecksumPart {
  const std::byte* data;
  std::int64_t elements;
  backend::DataType type;
};

/// Adds the checksum of the parts to `ring[*slot * rows + row]`, which must have been cleared. May be captured.
template <class Space>
void checksum(backend::Stream<Space>& stream, std::span<const ChecksumPart> parts, const std::int64_t* slot,
              Checksum* ring, std::int64_t row, std::int64_t rows);

/// Moves on to the next slot and clears its rows. May be captured.
template <class Space>
void advance_checksums(backend::Stream<Space>& stream, std::int64_t* slot, std::int64_t slots, Checksum* ring,
                       std::int64_t rows);

}  // namespace encore::kernels
