// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/embedding.hpp>
#include <encore/kernels/initialization.hpp>

#include "store_sums.hpp"

namespace encore::kernels {

namespace {

/// Sorted tokens that one team sums in the first phase. A run of equal ids that ends inside its chunk is done
/// then; the parts of a longer one meet in the second phase. On a GPU the loads of a chunk are all under way together.
template <class Space>
inline constexpr int chunk_tokens_of = backend::is_host_space<Space> ? 32 : 8;

template <int Chunk, class T, class G>
struct Operands {
  static constexpr int chunk_tokens = Chunk;

  const std::int32_t* ids;
  const std::int32_t* order;
  const T* output_gradient;
  G* table_gradient;
  /// Row 2c: the sum of the run that reaches into chunk c from the one before; row 2c + 1: of the run that
  /// begins in chunk c and goes on behind it.
  Accumulator<T>* partials;
  std::int64_t tokens, hidden, strips;
  bool accumulate;
  std::int64_t first_row, rows;  ///< of the vocabulary that the table has

  KOKKOS_FUNCTION bool has(std::int32_t id) const { return id >= first_row && id < first_row + rows; }
  KOKKOS_FUNCTION std::int32_t id_at(std::int64_t place) const { return ids[order[place]]; }
  KOKKOS_FUNCTION std::int64_t end_of(std::int64_t chunk) const {
    return (chunk + 1) * chunk_tokens < tokens ? (chunk + 1) * chunk_tokens : tokens;
  }
  std::int64_t chunks() const { return impl::rounded_up_quotient(tokens, chunk_tokens); }
  /// Where the sum of a whole run goes.
  KOKKOS_FUNCTION G* gradient(std::int32_t id, std::int64_t column) const {
    return table_gradient + (id - first_row) * hidden + column;
  }
};

constexpr int host_columns = 64;
constexpr std::int32_t no_id = INT32_MIN;

template <int Width, int Chunk, class T, class G>
struct SumChunks {
  using A = Accumulator<T>;
  static constexpr int threads = 128, chunk_tokens = Chunk;

  Operands<Chunk, T, G> of;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t chunk = team.league_rank() / of.strips, strip = team.league_rank() - chunk * of.strips;
    const std::int64_t begin = chunk * chunk_tokens;
    const int count = static_cast<int>(of.end_of(chunk) - begin);
    // Entry 1 + i belongs to the chunk's token i; the first and last say whether a run crosses its ends.
    std::int32_t* ids = team.template scratch<std::int32_t>();
    std::int32_t* rows = ids + chunk_tokens + 2;
    team.for_each(count + 2, [=, this](std::int64_t i) {
      const std::int64_t place = begin + i - 1;
      const bool inside = place >= 0 && place < of.tokens;
      rows[i] = inside ? of.order[place] : 0;
      ids[i] = inside ? of.ids[rows[i]] : no_id;
    });
    team.barrier();
    // The ids are sorted: most chunks have none of the table's rows, or nothing else.
    if (ids[count] < of.first_row || ids[1] >= of.first_row + of.rows) return;
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t column = 0; column < of.hidden; column += host_columns)
        walk_on_host(chunk, count, ids, rows, column);
    } else {
      const std::int64_t column = (strip * threads + team.rank()) * Width;
      if (column < of.hidden) walk_on_device(chunk, count, ids, rows, column);
    }
  }

 private:
  KOKKOS_FUNCTION void walk_on_host(std::int64_t chunk, int count, const std::int32_t* ids,
                                    const std::int32_t* rows, std::int64_t column) const {
    const int columns =
        static_cast<int>(of.hidden - column < host_columns ? of.hidden - column : host_columns);
    for (int first = 1; first <= count;) {
      A sum[host_columns] = {};
      int i = first;
      for (; i <= count && ids[i] == ids[first]; ++i) {
        const T* values = of.output_gradient + rows[i] * of.hidden + column;
#pragma GCC ivdep
        for (int c = 0; c < columns; ++c) sum[c] += static_cast<A>(values[c]);
      }
      store(chunk, count, ids, first, i - 1, column, columns, sum);
      first = i;
    }
  }

  KOKKOS_FUNCTION void walk_on_device(std::int64_t chunk, int count, const std::int32_t* ids,
                                      const std::int32_t* rows, std::int64_t column) const {
    constexpr int unroll = 8;  // Loads in flight, whatever the runs.
    A sum[Width] = {};
    int first = 1;
    for (int begin = 1; begin <= count; begin += unroll) {
      backend::Packet<T, Width> value[unroll];
      for (int u = 0; u < unroll; ++u)
        if (begin + u <= count)
          value[u] = backend::load_packet<Width>(of.output_gradient + rows[begin + u] * of.hidden + column);
      for (int u = 0; u < unroll; ++u) {
        const int i = begin + u;
        if (i > count) continue;
        for (int c = 0; c < Width; ++c) sum[c] += static_cast<A>(value[u][c]);
        if (i < count && ids[i + 1] == ids[i]) continue;
        store(chunk, count, ids, first, i, column, Width, sum);
        for (int c = 0; c < Width; ++c) sum[c] = A(0);
        first = i + 1;
      }
    }
  }

  /// Puts the sum of the chunk's entries [first, last], all of one id, where it belongs.
  KOKKOS_FUNCTION void store(std::int64_t chunk, int count, const std::int32_t* ids, int first, int last,
                             std::int64_t column, int columns, const A* sum) const {
    const std::int32_t id = ids[first];
    if (!of.has(id)) return;
    const bool from_before = first == 1 && ids[0] == id;
    const bool goes_on = last == count && ids[count + 1] == id;
    if (from_before || goes_on) {
      put(of.partials + (2 * chunk + (from_before ? 0 : 1)) * of.hidden + column, columns, sum, false);
    } else {
      put(of.gradient(id, column), columns, sum, of.accumulate);
    }
  }

  template <class Result>
  KOKKOS_FUNCTION static void put(Result* result, int columns, const A* sum, bool accumulate) {
    if constexpr (Width > 1)
      impl::store_sums<Width>(result, sum, accumulate);
    else
      for (int c = 0; c < columns; ++c) impl::store_sums<1>(result + c, sum + c, accumulate);
  }
};

/// Second phase: the team of the chunk in which a long run begins adds up its parts. Few do.
template <int Chunk, class T, class G>
struct JoinRuns {
  using A = Accumulator<T>;
  static constexpr int threads = 128, chunk_tokens = Chunk;
  static constexpr int strip_columns = 128;
  /// Strips that teams share out; one for all of them where there are many chunks.
  static std::int64_t strips(std::int64_t hidden, std::int64_t chunks) {
    constexpr std::int64_t teams = 16 * 132;  // All at once on an H200.
    const std::int64_t all = impl::rounded_up_quotient(hidden, strip_columns), most = teams / chunks;
    return most < 1 ? 1 : most < all ? most : all;
  }

  Operands<Chunk, T, G> of;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t chunk = team.league_rank() / of.strips, strip = team.league_rank() - chunk * of.strips;
    const std::int64_t begin = chunk * chunk_tokens, end = of.end_of(chunk);
    if (end == of.tokens) return;
    const std::int32_t id = of.id_at(end - 1), next = of.id_at(end);
    if (next != id || !of.has(id)) return;  // Mostly so.
    const bool begins_here = of.id_at(begin) != id || begin == 0 || of.id_at(begin - 1) != id;
    if (!begins_here) return;
    const std::int64_t chunks_behind = impl::rounded_up_quotient(of.tokens - end, chunk_tokens);
    const auto parts = team.template sum_over<std::int32_t>(
        chunks_behind, [&](std::int64_t k) { return of.id_at(end + k * chunk_tokens) == id ? 1 : 0; });
    const A* start = of.partials + (2 * chunk + 1) * of.hidden;
    const A* others = of.partials + 2 * (chunk + 1) * of.hidden;
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t column = 0; column < of.hidden; column += host_columns)
        join_on_host(id, parts, start, others, column);
    } else {
      for (std::int64_t column = strip * strip_columns; column < of.hidden;
           column += of.strips * strip_columns)
        join_on_device(team, id, parts, start, others, column);
    }
  }

 private:
  KOKKOS_FUNCTION void join_on_host(std::int32_t id, std::int32_t parts, const A* start, const A* others,
                                    std::int64_t column) const {
    const int columns =
        static_cast<int>(of.hidden - column < host_columns ? of.hidden - column : host_columns);
    A sum[host_columns];
    for (int c = 0; c < columns; ++c) sum[c] = start[column + c];
    for (std::int64_t k = 0; k < parts; ++k) {
      const A* row = others + 2 * k * of.hidden + column;
#pragma GCC ivdep
      for (int c = 0; c < columns; ++c) sum[c] += row[c];
    }
    for (int c = 0; c < columns; ++c)
      impl::store_sums<1>(of.gradient(id, column + c), sum + c, of.accumulate);
  }

  template <class Team>
  KOKKOS_FUNCTION void join_on_device(const Team& team, std::int32_t id, std::int32_t parts, const A* start,
                                      const A* others, std::int64_t begin) const {
    constexpr int unroll = 8, width = 4;
    constexpr int lanes = threads / (strip_columns / width);
    const int x = team.rank() % (strip_columns / width), lane = team.rank() / (strip_columns / width);
    const std::int64_t column = begin + x * width;
    const int columns = static_cast<int>(of.hidden - column < width ? of.hidden - column : width);
    A sum[width] = {};
    if (columns == width && of.hidden % width == 0) {
      std::int64_t k = lane;
      for (; k + (unroll - 1) * lanes < parts; k += unroll * lanes) {
        backend::Packet<A, width> value[unroll];
        for (int u = 0; u < unroll; ++u)
          value[u] = backend::load_packet<width>(others + 2 * (k + u * lanes) * of.hidden + column);
        for (int u = 0; u < unroll; ++u)
          for (int c = 0; c < width; ++c) sum[c] += value[u][c];
      }
      for (; k < parts; k += lanes) {
        const auto value = backend::load_packet<width>(others + 2 * k * of.hidden + column);
        for (int c = 0; c < width; ++c) sum[c] += value[c];
      }
    } else {
      for (std::int64_t k = lane; k < parts; k += lanes)
        for (int c = 0; c < columns; ++c) sum[c] += others[2 * k * of.hidden + column + c];
    }
    A* scratch = team.template scratch<A>();
    team.barrier();  // Until those of the columns before are read.
    for (int c = 0; c < width; ++c) scratch[c * threads + team.rank()] = sum[c];
    team.barrier();
    if (lane != 0) return;
    for (int c = 0; c < columns; ++c) {
      A total = start[column + c] + scratch[c * threads + x];
      for (int other = 1; other < lanes; ++other)
        total += scratch[c * threads + other * (strip_columns / width) + x];
      impl::store_sums<1>(of.gradient(id, column + c), &total, of.accumulate);
    }
  }
};

}  // namespace

std::int64_t embedding_workspace_rows(std::int64_t tokens) {
  constexpr std::int64_t least_chunk = 8;
  return 2 * impl::rounded_up_quotient(tokens, least_chunk);
}

template <class Space, class T, class G>
void embedding_backward(Stream<Space>& stream, Vector<const std::int32_t, Space> ids,
                        Vector<const std::int32_t, Space> order, Matrix<const T, Space> output_gradient,
                        Matrix<G, Space> table_gradient, Matrix<Accumulator<T>, Space> workspace,
                        bool accumulate, std::int64_t first_row) {
  using A = Accumulator<T>;
  const std::int64_t tokens = impl::rows_of(ids), hidden = impl::columns_of(output_gradient);
  impl::require_shape(
      impl::is_vector(ids, tokens) && impl::is_vector(order, tokens) &&
          impl::is_matrix(output_gradient, tokens, hidden) && impl::has_rows(table_gradient, 0, hidden),
      "embedding_backward: ids and order must be [tokens], output_gradient [tokens, hidden] and "
      "table_gradient [rows, hidden]");
  impl::require_shape(impl::has_rows(workspace, embedding_workspace_rows(tokens), hidden),
                      "embedding_backward: the workspace must be [embedding_workspace_rows(tokens), hidden]");
  if (!accumulate) {
    fill_constant<Space, G>(stream, Vector<G, Space>(table_gradient.data(), table_gradient.size()), 0.0);
  }
  constexpr bool host = backend::is_host_space<Space>;
  constexpr int chunk = chunk_tokens_of<Space>;
  Operands<chunk, T, G> of{ids.data(),
                           order.data(),
                           output_gradient.data(),
                           table_gradient.data(),
                           workspace.data(),
                           tokens,
                           hidden,
                           1,
                           accumulate,
                           first_row,
                           impl::rows_of(table_gradient)};
  const std::size_t sums = 2 * of.chunks() * hidden;
  impl::with_width<Space, backend::packet_width<T>>(
      hidden,
      [&](auto width) {
        using Functor = SumChunks<width, chunk, T, G>;
        of.strips = host ? 1 : impl::rounded_up_quotient(hidden, std::int64_t(width) * Functor::threads);
        launch(
            stream, "embedding/backward/chunks",
            {backend::read(ids), backend::read(order), backend::read(output_gradient),
             backend::write(workspace.data(), sums), backend::write(table_gradient)},
            backend::Teams<Functor::threads>{of.chunks() * of.strips, 2 * (chunk + 2) * sizeof(std::int32_t)},
            Functor{of});
      },
      output_gradient.data(), workspace.data(), table_gradient.data());
  if (of.chunks() < 2) return;
  using Functor = JoinRuns<chunk, T, G>;
  of.strips = host ? 1 : Functor::strips(hidden, of.chunks());
  launch(stream, "embedding/backward/join",
         {backend::read(ids), backend::read(order), backend::read(workspace.data(), sums),
          backend::write(table_gradient)},
         backend::Teams<Functor::threads>{of.chunks() * of.strips, 4 * Functor::threads * sizeof(A)},
         Functor{of});
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                     \
  template void embedding_backward<SPACE, T, G>(                                            \
      Stream<SPACE>&, Vector<const std::int32_t, SPACE>, Vector<const std::int32_t, SPACE>, \
      Matrix<const T, SPACE>, Matrix<G, SPACE>, Matrix<Accumulator<T>, SPACE>, bool, std::int64_t);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
