// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/combine.hpp>
#include <encore/kernels/dispatch.hpp>

#include "row_packets.hpp"

namespace encore::kernels {

namespace {

constexpr int rows_in_flight = 8;  ///< that a GPU thread loads before it adds them
constexpr int host_columns = 64;

/// Where the next rows of a token lie: -1 behind its last one.
struct PlacesInFlight {
  std::int32_t value[rows_in_flight];

  KOKKOS_FUNCTION PlacesInFlight(const std::int32_t* own, std::int64_t first, std::int64_t topk) {
    for (int u = 0; u < rows_in_flight; ++u) value[u] = first + u < topk ? own[first + u] : -1;
  }
};

/// A token is read once, however many rows it becomes.
template <int Width, class T>
struct GatherRows {
  const T* input;
  const std::int32_t* row_of;
  T* output;
  std::int64_t topk, hidden;

  KOKKOS_FUNCTION void operator()(std::int64_t token, std::int64_t packet) const {
    const auto value = backend::load_packet<Width>(input + token * hidden, packet);
    for (std::int64_t k = 0; k < topk; k += rows_in_flight) {
      const PlacesInFlight place(row_of + token * topk, k, topk);
      for (int u = 0; u < rows_in_flight; ++u)
        if (place.value[u] >= 0) backend::store_packet(output + place.value[u] * hidden, packet, value);
    }
  }

  KOKKOS_FUNCTION void do_row(std::int64_t token) const {
    const T* from = input + token * hidden;
    for (std::int64_t k = 0; k < topk; ++k) {
      const std::int32_t row = row_of[token * topk + k];
      if (row < 0) continue;
      T* to = output + row * hidden;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < hidden; ++c) to[c] = from[c];
    }
  }
};

/// output[t] = the sum of the token's rows, plus up to two addends.
template <int Width, class T>
struct CombineRows {
  using A = Accumulator<T>;

  const T* rows;
  const std::int32_t* row_of;
  const T* first;
  const T* second;
  T* output;
  std::int64_t topk, hidden;

  KOKKOS_FUNCTION void operator()(std::int64_t token, std::int64_t packet) const {
    using Values = backend::Packet<T, Width>;
    Values addends[2] = {};
    if (first != nullptr) addends[0] = backend::load_packet<Width>(first + token * hidden, packet);
    if (second != nullptr) addends[1] = backend::load_packet<Width>(second + token * hidden, packet);
    A sum[Width] = {};
    for (std::int64_t k = 0; k < topk; k += rows_in_flight) {
      const PlacesInFlight place(row_of + token * topk, k, topk);
      Values value[rows_in_flight] = {};
      for (int u = 0; u < rows_in_flight; ++u)
        if (place.value[u] >= 0)
          value[u] = backend::load_packet<Width>(rows + place.value[u] * hidden, packet);
      for (int u = 0; u < rows_in_flight; ++u) add(sum, value[u]);
    }
    for (const Values& addend : addends) add(sum, addend);
    backend::Packet<T, Width> result;
    for (int i = 0; i < Width; ++i) result[i] = static_cast<T>(sum[i]);
    backend::store_packet(output + token * hidden, packet, result);
  }

  /// For hosts: strips of columns, whose sums stay in vector registers.
  KOKKOS_FUNCTION void do_row(std::int64_t token) const {
    const std::int32_t* own = row_of + token * topk;
    for (std::int64_t begin = 0; begin < hidden; begin += host_columns) {
      const std::int64_t count = hidden - begin < host_columns ? hidden - begin : host_columns;
      A sum[host_columns] = {};
      for (std::int64_t k = 0; k < topk; ++k)
        if (own[k] >= 0) add_columns(sum, rows + own[k] * hidden + begin, count);
      if (first != nullptr) add_columns(sum, first + token * hidden + begin, count);
      if (second != nullptr) add_columns(sum, second + token * hidden + begin, count);
      T* result = output + token * hidden + begin;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < count; ++c) result[c] = static_cast<T>(sum[c]);
    }
  }

 private:
  KOKKOS_FUNCTION static void add_columns(A* sum, const T* values, std::int64_t count) {
#pragma GCC ivdep
    for (std::int64_t c = 0; c < count; ++c) sum[c] += static_cast<A>(values[c]);
  }
  KOKKOS_FUNCTION static void add(A (&sum)[Width], const backend::Packet<T, Width>& value) {
    for (int i = 0; i < Width; ++i) sum[i] += static_cast<A>(value[i]);
  }
};

template <class Space, class T>
void combine_rows(Stream<Space>& stream, const char* label, Matrix<const T, Space> rows,
                  Matrix<const std::int32_t, Space> row_of, Matrix<const T, Space> first,
                  Matrix<const T, Space> second, Matrix<T, Space> output) {
  const std::int64_t tokens = impl::rows_of(output), hidden = impl::columns_of(output);
  impl::with_packet_width<Space>(
      hidden,
      [&](auto width) {
        impl::launch_row_packets(
            stream, label,
            {backend::read(rows), backend::read(row_of), backend::read(first), backend::read(second),
             backend::write(output)},
            tokens, hidden / width,
            CombineRows<width, T>{rows.data(), row_of.data(), first.data(), second.data(), output.data(),
                                  impl::columns_of(row_of), hidden});
      },
      rows.data(), first.data(), second.data(), output.data());
}

}  // namespace

template <class Space, class T>
void gather_rows(Stream<Space>& stream, Matrix<const T, Space> input,
                 Matrix<const std::int32_t, Space> row_of, Matrix<T, Space> output) {
  const std::int64_t tokens = impl::rows_of(input), hidden = impl::columns_of(input);
  const std::int64_t topk = impl::columns_of(row_of);
  impl::require_shape(
      impl::is_matrix(input, tokens, hidden) && impl::is_matrix(row_of, tokens, topk) &&
          impl::has_rows(output, 0, hidden),
      "gather_rows: output must be [rows, hidden] and row_of [tokens, topk] where input is [tokens, hidden]");
  if (impl::rows_of(output) == 0) return;
  impl::with_packet_width<Space>(
      hidden,
      [&](auto width) {
        impl::launch_row_packets(
            stream, "dispatch/gather", {backend::read(input), backend::read(row_of), backend::write(output)},
            tokens, hidden / width,
            GatherRows<width, T>{input.data(), row_of.data(), output.data(), topk, hidden});
      },
      input.data(), output.data());
}

template <class Space, class T>
void gather_rows_backward(Stream<Space>& stream, Matrix<const T, Space> rows_gradient,
                          Matrix<const std::int32_t, Space> row_of, Matrix<T, Space> input_gradient,
                          bool accumulate) {
  const std::int64_t tokens = impl::rows_of(input_gradient), hidden = impl::columns_of(input_gradient);
  impl::require_shape(
      impl::has_rows(rows_gradient, 0, hidden) && impl::is_matrix(row_of, tokens, impl::columns_of(row_of)) &&
          impl::is_matrix(input_gradient, tokens, hidden),
      "gather_rows_backward: rows_gradient must be [rows, hidden] and row_of [tokens, topk] where "
      "input_gradient is [tokens, hidden]");
  const Matrix<const T, Space> addend = accumulate ? input_gradient : Matrix<T, Space>();
  combine_rows<Space, T>(stream, "dispatch/gather_backward", rows_gradient, row_of, addend, {},
                         input_gradient);
}

template <class Space, class T>
void combine_forward(Stream<Space>& stream, Matrix<const T, Space> expert_output,
                     Matrix<const std::int32_t, Space> row_of, Matrix<const T, Space> addend,
                     Matrix<const T, Space> shared, Matrix<T, Space> output) {
  const std::int64_t tokens = impl::rows_of(output), hidden = impl::columns_of(output);
  const auto fits = [&](const auto& view) {
    return impl::is_empty(view) || impl::is_matrix(view, tokens, hidden);
  };
  impl::require_shape(
      impl::has_rows(expert_output, 0, hidden) && impl::is_matrix(row_of, tokens, impl::columns_of(row_of)) &&
          fits(addend) && fits(shared) && impl::is_matrix(output, tokens, hidden),
      "combine_forward: expert_output must be [rows, hidden], row_of [tokens, topk], addend and shared "
      "[tokens, hidden] or empty, where output is [tokens, hidden]");
  combine_rows<Space, T>(stream, "combine/forward", expert_output, row_of, shared, addend, output);
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                       \
  template void gather_rows<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>,                              \
                                      Matrix<const std::int32_t, SPACE>, Matrix<T, SPACE>);                \
  template void gather_rows_backward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>,                     \
                                               Matrix<const std::int32_t, SPACE>, Matrix<T, SPACE>, bool); \
  template void combine_forward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>,                          \
                                          Matrix<const std::int32_t, SPACE>, Matrix<const T, SPACE>,       \
                                          Matrix<const T, SPACE>, Matrix<T, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
