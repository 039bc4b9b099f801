// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/packet.hpp>
#include <encore/kernels/types.hpp>

#include <type_traits>

namespace encore::kernels::impl {

/// Throws ConfigurationError with the sentence unless the views of a call fit each other.
inline void require_shape(bool fits, const char* sentence,
                          std::source_location where = std::source_location::current()) {
  require<ConfigurationError>(fits, sentence, where);
}

template <class View>
std::int64_t rows_of(const View& view) {
  return static_cast<std::int64_t>(view.extent(0));
}
template <class View>
std::int64_t columns_of(const View& view) {
  return static_cast<std::int64_t>(view.extent(1));
}

/// Whether a matrix is [rows, columns] without gaps between its rows.
template <class View>
bool is_matrix(const View& view, std::int64_t rows, std::int64_t columns) {
  return rows_of(view) == rows && columns_of(view) == columns && view.span_is_contiguous();
}

/// Whether a matrix has at least `rows` rows of `columns`, without gaps.
template <class View>
bool has_rows(const View& view, std::int64_t rows, std::int64_t columns) {
  return rows_of(view) >= rows && columns_of(view) == columns && view.span_is_contiguous();
}

template <class View>
bool is_vector(const View& view, std::int64_t length) {
  return rows_of(view) == length && view.span_is_contiguous();
}

template <class View>
bool is_empty(const View& view) {
  return view.data() == nullptr;
}

template <int Width>
using WidthConstant = std::integral_constant<int, Width>;

template <int Width, class T>
bool is_aligned(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % (Width * sizeof(T)) == 0;
}

KOKKOS_INLINE_FUNCTION constexpr int smaller(int a, int b) { return a < b ? a : b; }

template <class... T>
inline constexpr int common_packet_width = [] {
  int width = 16;
  ((width = smaller(width, backend::packet_width<T>)), ...);
  return width;
}();

/// Calls `launch(WidthConstant<Width>)` if the rows' length and the addresses allow packets of that width,
/// else `launch(WidthConstant<1>)`. Hosts always take 1: there the compiler vectorises plain loops.
template <class Space, int Width, class Launch, class... T>
void with_width(std::int64_t columns, const Launch& launch, const T*... data) {
  if constexpr (!backend::is_host_space<Space>) {
    if (columns % Width == 0 && (is_aligned<Width>(data) && ...)) return launch(WidthConstant<Width>{});
  }
  launch(WidthConstant<1>{});
}

/// As above with packets of 16 bytes of the largest of the types.
template <class Space, class Launch, class... T>
void with_packet_width(std::int64_t columns, const Launch& launch, const T*... data) {
  with_width<Space, common_packet_width<T...>>(columns, launch, data...);
}

template <class Team>
inline constexpr bool is_host_team = std::is_same_v<Team, backend::HostTeam>;

/// A quotient by the cheap 32-bit instruction sequence wherever it suffices.
KOKKOS_INLINE_FUNCTION std::int64_t quotient(std::int64_t dividend, std::int64_t divisor) {
  if (((dividend | divisor) >> 32) == 0)
    return static_cast<std::uint32_t>(dividend) / static_cast<std::uint32_t>(divisor);
  return dividend / divisor;
}

KOKKOS_INLINE_FUNCTION constexpr std::int64_t rounded_up_quotient(std::int64_t dividend,
                                                                  std::int64_t divisor) {
  return (dividend + divisor - 1) / divisor;
}

}  // namespace encore::kernels::impl
