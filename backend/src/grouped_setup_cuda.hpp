// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/grouped_blas.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/packet.hpp>

#include <cstddef>

namespace encore::backend::impl {

/// Where a group's part of an operand begins: base + row_bytes * begins[g] + group_bytes * g.
struct GroupedOperand {
  const std::byte* base;
  std::int64_t row_bytes, group_bytes;
  std::int64_t stride;  ///< between rows in memory, in elements
};

/// Writes what CUTLASS wants to know of each group, and zeros into the results of groups without rows, for which it
/// computes nothing. Items before `described` write for one group each; zeros_per_group items follow for each group.
struct GroupedSetup {
  static constexpr int operands = 3;
  static constexpr std::int64_t zeros_per_group = 4096;
  static constexpr std::int64_t unit = 256;

  RowGroups groups;
  GroupedOperand operand[operands];
  const void** pointers[operands];
  std::int64_t* strides[operands];
  std::byte* results;
  std::int64_t zero_packets;  ///< of 16 bytes, in a group's result; 0: no zeros are written

  std::int64_t described() const { return (groups.groups + unit - 1) / unit * unit; }
  std::int64_t items() const {
    return described() + (zero_packets > 0 ? groups.groups * zeros_per_group : 0);
  }

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t rounded = (groups.groups + unit - 1) / unit * unit;
    if (item >= rounded) return write_zeros(item - rounded);
    if (item >= groups.groups) return;
    for (int i = 0; i < operands; ++i) {
      pointers[i][item] =
          operand[i].base + operand[i].row_bytes * groups.begins[item] + operand[i].group_bytes * item;
      strides[i][item] = operand[i].stride;
    }
  }

  KOKKOS_FUNCTION void write_zeros(std::int64_t item) const {
    const std::int64_t group = item / zeros_per_group;
    if (groups.begins[group] != groups.ends[group]) return;
    std::byte* result = results + group * zero_packets * 16;
    for (std::int64_t packet = item % zeros_per_group; packet < zero_packets; packet += zeros_per_group)
      store_packet<4>(reinterpret_cast<float*>(result), packet, Packet<float, 4>{});
  }
};

}  // namespace encore::backend::impl
