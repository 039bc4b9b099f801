// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/decode.hpp>

#include "row_packets.hpp"

namespace encore::kernels {

namespace {

template <int Width, class T>
struct DecodeEmbedding {
  using A = Accumulator<T>;

  const std::int32_t* first;
  const std::int32_t* count;
  const std::int32_t* tokens;
  const T* table;
  const T* positions;
  T* output;
  std::int32_t* live;
  std::int64_t step_tokens, capacity, hidden;

  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t packet) const {
    const std::int64_t sequence = impl::quotient(row, step_tokens), t = row - sequence * step_tokens;
    const std::int64_t position = first[sequence] + t;
    const bool holds = t < count[sequence] && position < capacity;
    backend::Packet<T, Width> sum;
    for (int i = 0; i < Width; ++i) sum[i] = static_cast<T>(0.0F);
    if (holds) {
      const std::int64_t token = tokens[sequence * capacity + position];
      sum = backend::load_packet<Width>(table + token * hidden, packet);
      if (positions != nullptr) {
        const auto added = backend::load_packet<Width>(positions + position * hidden, packet);
        for (int i = 0; i < Width; ++i)
          sum[i] = static_cast<T>(static_cast<A>(sum[i]) + static_cast<A>(added[i]));
      }
    }
    backend::store_packet(output + row * hidden, packet, sum);
    if (packet == 0 && live != nullptr) live[row] = holds ? 1 : 0;
  }
};

struct AdvancePositions {
  const std::int32_t* count;
  std::int32_t* first;

  KOKKOS_FUNCTION void operator()(std::int64_t sequence) const { first[sequence] += count[sequence]; }
};

}  // namespace

template <class Space, class T>
void decode_embedding(Stream<Space>& stream, const DecodeRows<Space>& rows,
                      Matrix<const std::int32_t, Space> tokens, Matrix<const T, Space> table,
                      Matrix<const T, Space> positions, Matrix<T, Space> output,
                      Vector<std::int32_t, Space> live) {
  const std::int64_t hidden = impl::columns_of(table), capacity = impl::columns_of(tokens);
  impl::require_shape(impl::is_vector(rows.count, rows.sequences()) &&
                          impl::is_matrix(tokens, rows.sequences(), capacity) &&
                          (impl::is_empty(positions) || impl::has_rows(positions, capacity, hidden)) &&
                          impl::is_matrix(output, rows.rows(), hidden) &&
                          (impl::is_empty(live) || impl::is_vector(live, rows.rows())),
                      "decode_embedding: tokens must be [sequences, capacity], table [vocabulary, hidden], "
                      "positions [>= capacity, hidden], output [rows, hidden] and live [rows]");
  impl::with_packet_width<Space>(
      hidden,
      [&](auto width) {
        impl::launch_row_packets(
            stream, "decode/embedding",
            {backend::read(rows.first), backend::read(rows.count), backend::read(tokens),
             backend::read(table), backend::read(positions), backend::write(output), backend::write(live)},
            rows.rows(), hidden / width,
            DecodeEmbedding<width, T>{rows.first.data(), rows.count.data(), tokens.data(), table.data(),
                                      positions.data(), output.data(), live.data(), rows.tokens, capacity,
                                      hidden});
      },
      table.data(), positions.data(), output.data());
}

template <class Space>
void advance_positions(Stream<Space>& stream, Vector<const std::int32_t, Space> count,
                       Vector<std::int32_t, Space> first) {
  const std::int64_t sequences = impl::rows_of(first);
  impl::require_shape(impl::is_vector(count, sequences), "advance_positions: both must be [sequences]");
  launch(stream, "decode/advance", {backend::read(count), backend::write(first)}, backend::Range{sequences},
         AdvancePositions{count.data(), first.data()});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                       \
  template void decode_embedding<SPACE, T>(                                                                \
      Stream<SPACE>&, const DecodeRows<SPACE>&, Matrix<const std::int32_t, SPACE>, Matrix<const T, SPACE>, \
      Matrix<const T, SPACE>, Matrix<T, SPACE>, Vector<std::int32_t, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE
#define ENCORE_INSTANTIATE(SPACE)                                                           \
  template void advance_positions<SPACE>(Stream<SPACE>&, Vector<const std::int32_t, SPACE>, \
                                         Vector<std::int32_t, SPACE>);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
