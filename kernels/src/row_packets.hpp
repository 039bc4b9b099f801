// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "divisor.hpp"
#include "shapes.hpp"

namespace encore::kernels::impl {

/// Calls `body(row, packet)` for every packet of every row: on a GPU one thread each, so that short rows fill
/// a block too; on a host one team a row, whose calls the compiler may turn into vector code.
template <class Body>
struct RowPackets {
  static constexpr int threads = 256;

  Body body;
  Divisor packets;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t row = packets.quotient(item);
    body(row, item - row * packets.divisor());
  }
  KOKKOS_FUNCTION void operator()(const backend::HostTeam& team) const {
    const std::int64_t row = team.league_rank();
    if constexpr (requires { body.do_row(row); }) {
      body.do_row(row);
    } else {
      const Body local = body;
      team.for_each(packets.divisor(), [=](std::int64_t packet) { local(row, packet); });
    }
  }
};

template <class Space, class Body>
void launch_row_packets(Stream<Space>& stream, const char* label, backend::Accesses accesses,
                        std::int64_t rows, std::int64_t packets, const Body& body) {
  if constexpr (backend::is_host_space<Space>)
    launch(stream, label, accesses, backend::Teams<32>{rows}, RowPackets<Body>{body, Divisor(packets)});
  else
    launch(stream, label, accesses, backend::Range{rows * packets}, RowPackets<Body>{body, Divisor(packets)});
}

}  // namespace encore::kernels::impl
