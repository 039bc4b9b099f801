// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/embedding.hpp>

#include "store_sums.hpp"

namespace encore::kernels {

namespace {

constexpr int row_threads = 128;

template <int Width, bool Positions, class T>
struct EmbeddingForward {
  const std::int32_t* ids;
  const T* table;
  const T* positions;
  T* output;
  std::int64_t sequence, hidden, first_row, rows;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using A = Accumulator<T>;
    const std::int64_t token = team.league_rank();
    const std::int64_t id = ids[token] - first_row;
    const bool is_there = id >= 0 && id < rows;
    const T* source = table + id * hidden;
    const T* position = Positions ? positions + token % sequence * hidden : nullptr;
    T* row = output + token * hidden;
    team.for_each(hidden / Width, [=](std::int64_t item) {
      backend::Packet<T, Width> value{};
      if (is_there) value = backend::load_packet<Width>(source, item);
      if constexpr (Positions) {
        const auto more = backend::load_packet<Width>(position, item);
        for (int i = 0; i < Width; ++i)
          value[i] = static_cast<T>(static_cast<A>(value[i]) + static_cast<A>(more[i]));
      }
      backend::store_packet(row, item, value);
    });
  }
};

/// One team a row of the gradient; hosts take strips of columns so that the sums stay in vector registers.
template <int Width, class T, class G>
struct PositionBackward {
  using A = Accumulator<T>;

  const T* output_gradient;
  G* positions_gradient;
  std::int64_t tokens, sequence, hidden;
  bool accumulate;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    G* row = positions_gradient + team.league_rank() * hidden;
    if constexpr (impl::is_host_team<Team>) {
      constexpr int host_columns = 64;
      for (std::int64_t begin = 0; begin < hidden; begin += host_columns) {
        const std::int64_t count = hidden - begin < host_columns ? hidden - begin : host_columns;
        A sum[host_columns] = {};
        for (std::int64_t token = first(team); token < tokens; token += sequence) {
          const T* values = output_gradient + token * hidden + begin;
#pragma GCC ivdep
          for (std::int64_t i = 0; i < count; ++i) sum[i] += static_cast<A>(values[i]);
        }
        for (std::int64_t i = 0; i < count; ++i) impl::store_sums<1>(row + begin + i, sum + i, accumulate);
      }
    } else {
      team.for_each(hidden / Width, [&](std::int64_t item) {
        A sum[Width] = {};
        for (std::int64_t token = first(team); token < tokens; token += sequence) {
          const auto value = backend::load_packet<Width>(output_gradient + token * hidden, item);
          for (int i = 0; i < Width; ++i) sum[i] += static_cast<A>(value[i]);
        }
        impl::store_sums<Width>(row + item * Width, sum, accumulate);
      });
    }
  }

 private:
  /// First token that stands at this team's position; none behind the sequence.
  template <class Team>
  KOKKOS_FUNCTION std::int64_t first(const Team& team) const {
    return team.league_rank() < sequence ? team.league_rank() : tokens;
  }
};

}  // namespace

template <class Space, class T>
void embedding_forward(Stream<Space>& stream, Vector<const std::int32_t, Space> ids,
                       Matrix<const T, Space> table, Matrix<const T, Space> positions, std::int64_t sequence,
                       Matrix<T, Space> output, std::int64_t first_row) {
  const std::int64_t tokens = impl::rows_of(ids), hidden = impl::columns_of(table);
  impl::require_shape(
      impl::is_vector(ids, tokens) && impl::has_rows(table, 0, hidden) &&
          impl::is_matrix(output, tokens, hidden) && sequence > 0 &&
          (impl::is_empty(positions) || impl::has_rows(positions, sequence, hidden)),
      "embedding_forward: ids must be [tokens], table [rows, hidden], positions [>= sequence, "
      "hidden] or empty, and output [tokens, hidden]");
  impl::with_packet_width<Space>(
      hidden,
      [&](auto width) {
        const auto queue = [&](const auto& functor) {
          launch(stream, "embedding/forward",
                 {backend::read(ids), backend::read(table), backend::read(positions), backend::write(output)},
                 backend::Teams<row_threads>{tokens}, functor);
        };
        if (impl::is_empty(positions)) {
          queue(EmbeddingForward<width, false, T>{ids.data(), table.data(), nullptr, output.data(), sequence,
                                                  hidden, first_row, impl::rows_of(table)});
        } else {
          queue(EmbeddingForward<width, true, T>{ids.data(), table.data(), positions.data(), output.data(),
                                                 sequence, hidden, first_row, impl::rows_of(table)});
        }
      },
      table.data(), positions.data(), output.data());
}

template <class Space, class T, class G>
void position_embedding_backward(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                                 std::int64_t sequence, Matrix<G, Space> positions_gradient,
                                 bool accumulate) {
  const std::int64_t tokens = impl::rows_of(output_gradient), hidden = impl::columns_of(output_gradient);
  impl::require_shape(sequence > 0 && impl::is_matrix(output_gradient, tokens, hidden) &&
                          impl::has_rows(positions_gradient, sequence, hidden),
                      "position_embedding_backward: output_gradient must be [tokens, hidden] and "
                      "positions_gradient [>= sequence, hidden]");
  const std::int64_t rows = accumulate ? sequence : impl::rows_of(positions_gradient);
  impl::with_width<Space, backend::packet_width<T>>(
      hidden,
      [&](auto width) {
        launch(stream, "embedding/backward/positions",
               {backend::read(output_gradient), backend::write(positions_gradient)},
               backend::Teams<row_threads>{rows},
               PositionBackward<width, T, G>{output_gradient.data(), positions_gradient.data(), tokens,
                                             sequence, hidden, accumulate});
      },
      output_gradient.data(), positions_gradient.data());
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                      \
  template void embedding_forward<SPACE, T>(Stream<SPACE>&, Vector<const std::int32_t, SPACE>,            \
                                            Matrix<const T, SPACE>, Matrix<const T, SPACE>, std::int64_t, \
                                            Matrix<T, SPACE>, std::int64_t);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                          \
  template void position_embedding_backward<SPACE, T, G>(Stream<SPACE>&, Matrix<const T, SPACE>, \
                                                         std::int64_t, Matrix<G, SPACE>, bool);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
