// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/cross_entropy.hpp>

#include "logit_rows.hpp"

namespace encore::kernels {

namespace {

constexpr int row_threads = 512;

template <bool Packets, class T>
struct PartStatistics {
  using A = Accumulator<T>;

  const T* logits;
  const std::int32_t* labels;
  A* statistics;
  std::int64_t part, first;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t token = team.league_rank();
    const T* row = logits + token * part;
    A* result = statistics + token * part_statistics;
    const std::int32_t label = labels[token];
    impl::RunningSum<A> sum;
    if (label >= 0) sum = impl::LogitRow<Packets, T>{part}.sum_of(team, row);
    if (team.rank() != 0) return;
    const std::int64_t place = label - first;
    result[0] = sum.maximum;
    result[1] = sum.sum;
    result[2] = label >= 0 && place >= 0 && place < part ? static_cast<A>(row[place]) : A(0);
  }
};

template <bool Packets, class T>
struct CrossEntropyOfParts {
  using A = Accumulator<T>;
  using Row = impl::LogitRow<Packets, T>;

  T* logits;
  const std::int32_t* labels;
  const A* statistics;
  const double* label_count;
  A* row_loss;
  std::int64_t tokens, part, first;
  int parts;
  bool write_gradient;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t token = team.league_rank();
    T* row = logits + token * part;
    const Row of{part};
    const std::int32_t label = labels[token];
    if (label < 0) {
      if (team.rank() == 0) row_loss[token] = A(0);
      if (write_gradient) of.clear(team, row);
      return;
    }
    A maximum = impl::lowest<A>, sum = A(0), label_logit = A(0);
    for (int p = 0; p < parts; ++p) maximum = at(p, token, 0) > maximum ? at(p, token, 0) : maximum;
    for (int p = 0; p < parts; ++p) {
      sum += at(p, token, 1) * impl::exponential(at(p, token, 0) - maximum);
      label_logit += at(p, token, 2);
    }
    const A log_sum = maximum + Kokkos::log(sum);
    if (team.rank() == 0) row_loss[token] = log_sum - label_logit;
    if (!write_gradient) return;
    const A scale = *label_count > 0 ? 1 / static_cast<A>(*label_count) : A(0);
    const std::int64_t place = label - first;
    if constexpr (impl::is_host_team<Team>) {
      const std::int64_t count = part;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i)
        row[i] = static_cast<T>(impl::exponential(static_cast<A>(row[i]) - log_sum) * scale);
      if (place >= 0 && place < part)
        row[place] = static_cast<T>((impl::exponential(label_logit - log_sum) - 1) * scale);
    } else {
      const auto gradient = [&](std::int64_t i, T logit) {
        const A probability = impl::exponential(static_cast<A>(logit) - log_sum);
        return static_cast<T>((i == place ? probability - 1 : probability) * scale);
      };
      of.for_each_packet(
          team, row, [&](std::int64_t i) { row[i] = gradient(i, row[i]); },
          [&](T* packet, std::int64_t begin) {
            auto values = backend::load_packet<Row::width>(packet);
            for (int i = 0; i < Row::width; ++i) values[i] = gradient(begin + i, values[i]);
            backend::store_packet(packet, 0, values);
          });
    }
  }

 private:
  KOKKOS_FUNCTION A at(int p, std::int64_t token, int which) const {
    return statistics[(p * tokens + token) * part_statistics + which];
  }
};

}  // namespace

template <class Space, class T>
void cross_entropy_part(Stream<Space>& stream, Matrix<const T, Space> logits,
                        Vector<const std::int32_t, Space> labels, std::int64_t first,
                        Matrix<Accumulator<T>, Space> statistics) {
  const std::int64_t tokens = impl::rows_of(labels), part = impl::columns_of(logits);
  impl::require_shape(
      impl::is_vector(labels, tokens) && impl::is_matrix(logits, tokens, part) &&
          impl::is_matrix(statistics, tokens, part_statistics),
      "cross_entropy_part: labels must be [tokens], logits [tokens, part of the vocabulary] and "
      "statistics [tokens, part_statistics]");
  launch(stream, "cross_entropy/part",
         {backend::read(logits), backend::read(labels), backend::write(statistics)},
         backend::Teams<row_threads>{tokens},
         PartStatistics<!backend::is_host_space<Space>, T>{logits.data(), labels.data(), statistics.data(),
                                                           part, first});
}

template <class Space, class T>
void cross_entropy_of_parts(Stream<Space>& stream, Matrix<T, Space> logits,
                            Vector<const std::int32_t, Space> labels, std::int64_t first,
                            Matrix<const Accumulator<T>, Space> statistics, const double* label_count,
                            Vector<Accumulator<T>, Space> row_loss, bool write_gradient) {
  const std::int64_t tokens = impl::rows_of(labels), part = impl::columns_of(logits);
  const std::int64_t parts = tokens == 0 ? 0 : impl::rows_of(statistics) / tokens;
  impl::require_shape(
      impl::is_vector(labels, tokens) && impl::is_matrix(logits, tokens, part) &&
          impl::is_matrix(statistics, parts * tokens, part_statistics) && impl::is_vector(row_loss, tokens),
      "cross_entropy_of_parts: labels and row_loss must be [tokens], logits [tokens, part of the "
      "vocabulary] and statistics [parts * tokens, part_statistics]");
  // Only the gradient is written in place of the logits.
  const auto access = write_gradient ? backend::write(logits) : backend::read(Matrix<const T, Space>(logits));
  launch(stream, "cross_entropy/of_parts",
         {access, backend::read(labels), backend::read(statistics), backend::read(label_count, 1),
          backend::write(row_loss)},
         backend::Teams<row_threads>{tokens},
         CrossEntropyOfParts<!backend::is_host_space<Space>, T>{
             logits.data(), labels.data(), statistics.data(), label_count, row_loss.data(), tokens, part,
             first, static_cast<int>(parts), write_gradient});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                          \
  template void cross_entropy_part<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>,          \
                                             Vector<const std::int32_t, SPACE>, std::int64_t, \
                                             Matrix<Accumulator<T>, SPACE>);                  \
  template void cross_entropy_of_parts<SPACE, T>(                                             \
      Stream<SPACE>&, Matrix<T, SPACE>, Vector<const std::int32_t, SPACE>, std::int64_t,      \
      Matrix<const Accumulator<T>, SPACE>, const double*, Vector<Accumulator<T>, SPACE>, bool);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
