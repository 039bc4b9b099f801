// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/gated_normalization.hpp>

#include "column_access.hpp"
#include "mathematics.hpp"
#include "normalization_shape.hpp"

namespace encore::kernels::impl {

/// v = input * silu(gate), and the derivatives of it.
template <class A>
struct Gated {
  A value, of_input, of_gate;

  KOKKOS_FUNCTION Gated(A input, A gate) {
    const A open = logistic(gate);
    of_input = gate * open;
    value = input * of_input;
    of_gate = input * open * (1 + gate * (1 - open));
  }
};

/// As with_row_team, for stretches of rows that need not touch.
template <class Space, class T, class... Teams, class Launch, class... Column>
bool with_stretch_team(std::int64_t length, const T* weight, const Launch& launch, const Column&... columns) {
  if ((is_aligned<backend::packet_width<T>>(columns) && ...))
    return with_row_team<Space, T, Teams...>(length, launch, weight);
  return false;
}

template <class... Column>
bool have_shape(std::int64_t rows, std::int64_t columns, const Column&... operands) {
  return ((operands.rows == rows && operands.columns == columns) && ...);
}

}  // namespace encore::kernels::impl
