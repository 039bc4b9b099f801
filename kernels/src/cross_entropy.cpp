// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/cross_entropy.hpp>

#include "logit_rows.hpp"

namespace encore::kernels {

namespace {

template <bool Packets, class T>
struct CrossEntropy {
  using A = Accumulator<T>;
  using Row = impl::LogitRow<Packets, T>;

  T* logits;
  const std::int32_t* labels;
  const double* label_count;
  A* row_loss;
  std::int64_t vocabulary;
  bool write_gradient;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    T* row = logits + team.league_rank() * vocabulary;
    const Row of{vocabulary};
    const std::int32_t label = labels[team.league_rank()];
    if (label < 0) {
      if (team.rank() == 0) row_loss[team.league_rank()] = A(0);
      if (write_gradient) of.clear(team, row);
      return;
    }
    const A label_logit = static_cast<A>(row[label]);
    const impl::RunningSum<A> sum = of.sum_of(team, row);
    const A log_sum = sum.maximum + Kokkos::log(sum.sum);
    if (team.rank() == 0) row_loss[team.league_rank()] = log_sum - label_logit;
    if (!write_gradient) return;
    const A scale = *label_count > 0 ? 1 / static_cast<A>(*label_count) : A(0);
    if constexpr (impl::is_host_team<Team>) {
      const std::int64_t count = vocabulary;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i)
        row[i] = static_cast<T>(impl::exponential(static_cast<A>(row[i]) - log_sum) * scale);
      row[label] = static_cast<T>((impl::exponential(label_logit - log_sum) - 1) * scale);
    } else {
      const auto gradient = [&](std::int64_t i, T logit) {
        const A probability = impl::exponential(static_cast<A>(logit) - log_sum);
        return static_cast<T>((i == label ? probability - 1 : probability) * scale);
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
};

/// As above for a GPU, with the row's packets in the team's scratch between the pass that sums and the pass that
/// writes: memory is read once.
template <class T, int Threads>
struct HeldCrossEntropy {
  using A = Accumulator<T>;
  static constexpr int width = backend::packet_width<T>, threads = Threads;
  static constexpr int unroll = 4;  ///< Packets on their way to a thread at a time.
  static constexpr A log2_e = A(1.4426950408889634);
  static constexpr A least = impl::lowest<A>;
  using P = backend::Packet<T, width>;

  T* logits;
  const std::int32_t* labels;
  const double* label_count;
  A* row_loss;
  std::int64_t vocabulary;
  bool write_gradient;

  static std::size_t scratch_bytes(std::int64_t vocabulary) { return vocabulary / width * sizeof(P); }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    T* row = logits + team.league_rank() * vocabulary;
    const std::int32_t label = labels[team.league_rank()];
    // A row of an odd vocabulary may begin anywhere: what stands before its first and behind its last whole packet goes
    // element by element, to the first threads.
    const auto misplaced =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T) % width);
    const int size = static_cast<int>(vocabulary);
    const int head = misplaced == 0 ? 0 : impl::smaller(size, static_cast<int>(width - misplaced));
    const int packets = (size - head) / width, tail = (size - head) % width;
    const int edge = team.rank() < head ? team.rank() : head + packets * width + team.rank() - head;
    const bool has_edge = team.rank() < head + tail;
    if (label < 0) {
      if (team.rank() == 0) row_loss[team.league_rank()] = A(0);
      if (!write_gradient) return;
      if (has_edge) row[edge] = static_cast<T>(A(0));
      for (int p = team.rank(); p < packets; p += threads) backend::store_packet(row + head, p, P{});
      return;
    }
    const A label_logit = static_cast<A>(row[label]);
    const A scale = *label_count > 0 ? 1 / static_cast<A>(*label_count) : A(0);
    const A edge_logit = has_edge ? static_cast<A>(row[edge]) : least;
    const A log_sum = log_sum_of(team, row + head, packets, edge_logit);
    if (team.rank() == 0) row_loss[team.league_rank()] = log_sum - label_logit;
    if (!write_gradient) return;
    const auto gradient = [=](A logit) { return power(logit - log_sum) * scale; };
    if (has_edge) row[edge] = static_cast<T>(gradient(edge_logit) - (edge == label ? scale : A(0)));
    const P* held = team.template scratch<P>();
    const int place = label - head;  // Among the packets' elements, if it is one of them.
    for (int p = team.rank(); p < packets; p += threads) {
      P values = held[p];
      const bool has_label = place >= p * width && place < (p + 1) * width;
      for (int i = 0; i < width; ++i) {
        const A value = gradient(static_cast<A>(values[i]));
        values[i] = static_cast<T>(has_label && place == p * width + i ? value - scale : value);
      }
      backend::store_packet(row + head, p, values);
    }
  }

 private:
  /// exp, for arguments that are not above 0.
  KOKKOS_FUNCTION static A power(A argument) { return impl::exponential_of_two(argument * log2_e); }

  /// log of the sum of exp over the row, whose packets it puts into the scratch. Each thread will read its own ones.
  template <class Team>
  KOKKOS_FUNCTION A log_sum_of(const Team& team, const T* row, int packets, A edge_logit) const {
    P* held = team.template scratch<P>();
    A maximum = edge_logit < least ? least : edge_logit, sum = edge_logit <= least ? A(0) : A(1);
    for (int first = team.rank(); first < packets; first += unroll * threads) {
      P values[unroll];
      for (int u = 0; u < unroll; ++u)
        if (first + u * threads < packets) values[u] = backend::load_packet<width>(row, first + u * threads);
      for (int u = 0; u < unroll; ++u) {
        if (first + u * threads >= packets) continue;
        held[first + u * threads] = values[u];
        A largest = maximum;
        for (int i = 0; i < width; ++i)
          largest = static_cast<A>(values[u][i]) > largest ? static_cast<A>(values[u][i]) : largest;
        if (largest > maximum) sum *= power(maximum - largest);
        maximum = largest;
        for (int i = 0; i < width; ++i) sum += power(static_cast<A>(values[u][i]) - maximum);
      }
    }
    const A largest = team.max(maximum);
    return largest + Kokkos::log(team.sum(sum * power(maximum - largest)));
  }
};

/// Rows that leave room for two teams, or one, in the shared memory of a multiprocessor of an H200.
constexpr std::size_t two_rows_bytes = 112 * 1024, one_row_bytes = 225 * 1024;

struct CountLabels {
  const std::int32_t* labels;
  std::int64_t tokens;
  double* count;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int32_t* from = labels;
    const auto total =
        team.template sum_over<std::int32_t>(tokens, [=](std::int64_t i) { return from[i] >= 0 ? 1 : 0; });
    if (team.rank() == 0) *count = total;
  }
};

template <class A>
struct ReduceLoss {
  const A* row_loss;
  std::int64_t tokens;
  const double* label_count;
  double* loss;
  bool accumulate;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const A* from = row_loss;
    const double total =
        team.template sum_over<double>(tokens, [=](std::int64_t i) { return static_cast<double>(from[i]); });
    if (team.rank() != 0) return;
    const double mean = *label_count > 0 ? total / *label_count : 0.0;
    *loss = accumulate ? *loss + mean : mean;
  }
};

constexpr int single_team_threads = 1024;

}  // namespace

template <class Space>
void count_labels(Stream<Space>& stream, Vector<const std::int32_t, Space> labels, double* count) {
  const backend::BesideScope<Space> beside(stream);
  launch(stream, "cross_entropy/count", {backend::read(labels), backend::write(count, 1)},
         backend::Teams<single_team_threads>{1}, CountLabels{labels.data(), impl::rows_of(labels), count});
}

template <class Space, class T>
void cross_entropy(Stream<Space>& stream, Matrix<T, Space> logits, Vector<const std::int32_t, Space> labels,
                   const double* label_count, Vector<Accumulator<T>, Space> row_loss, bool write_gradient) {
  const std::int64_t tokens = impl::rows_of(logits), vocabulary = impl::columns_of(logits);
  impl::require_shape(impl::is_matrix(logits, tokens, vocabulary) && impl::is_vector(labels, tokens) &&
                          impl::is_vector(row_loss, tokens),
                      "cross_entropy: logits must be [tokens, vocabulary], labels and row_loss [tokens]");
  const auto queue = [&](auto teams, const auto& functor) {
    backend::Access access = backend::write(logits);
    access.writes = write_gradient;
    launch(stream, "cross_entropy",
           {access, backend::read(labels), backend::read(label_count, 1), backend::write(row_loss)}, teams,
           functor);
  };
  if constexpr (!backend::is_host_space<Space>) {
    const auto hold = [&](auto threads) {
      using Functor = HeldCrossEntropy<T, threads>;
      queue(backend::Teams<Functor::threads>{tokens, Functor::scratch_bytes(vocabulary)},
            Functor{logits.data(), labels.data(), label_count, row_loss.data(), vocabulary, write_gradient});
    };
    const std::size_t row_bytes = static_cast<std::size_t>(vocabulary) * sizeof(T);
    if (row_bytes <= 16 * 1024) return hold(impl::WidthConstant<128>{});
    if (row_bytes <= two_rows_bytes) return hold(impl::WidthConstant<512>{});
    if (row_bytes <= one_row_bytes) return hold(impl::WidthConstant<1024>{});
  }
  queue(backend::Teams<1024>{tokens},
        CrossEntropy<!backend::is_host_space<Space>, T>{logits.data(), labels.data(), label_count,
                                                        row_loss.data(), vocabulary, write_gradient});
}

template <class Space, class A>
void reduce_loss(Stream<Space>& stream, Vector<const A, Space> row_loss, const double* label_count,
                 double* loss, bool accumulate) {
  const backend::BesideScope<Space> beside(stream);
  launch(stream, "cross_entropy/mean",
         {backend::read(row_loss), backend::read(label_count, 1), backend::write(loss, 1)},
         backend::Teams<single_team_threads>{1},
         ReduceLoss<A>{row_loss.data(), impl::rows_of(row_loss), label_count, loss, accumulate});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                         \
  template void cross_entropy<SPACE, T>(Stream<SPACE>&, Matrix<T, SPACE>, Vector<const std::int32_t, SPACE>, \
                                        const double*, Vector<Accumulator<T>, SPACE>, bool);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

#define ENCORE_INSTANTIATE(SPACE)                                                                    \
  template void count_labels<SPACE>(Stream<SPACE>&, Vector<const std::int32_t, SPACE>, double*);     \
  template void reduce_loss<SPACE, float>(Stream<SPACE>&, Vector<const float, SPACE>, const double*, \
                                          double*, bool);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE
ENCORE_IF_SERIAL(template void reduce_loss<Kokkos::Serial, double>(Stream<Kokkos::Serial>&,
                                                                   Vector<const double, Kokkos::Serial>,
                                                                   const double*, double*, bool);)

}  // namespace encore::kernels
