// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/expert_exchange.hpp>

#include "shapes.hpp"

namespace encore::kernels {

namespace {

struct GroupExperts {
  const std::int32_t* experts;
  std::int32_t* groups;
  std::int32_t size;

  KOKKOS_FUNCTION void operator()(std::int64_t pair) const {
    const std::int32_t expert = experts[pair];
    groups[pair] = expert < 0 ? -1 : expert / size;
  }
};

template <class A>
struct PackRouting {
  const std::int32_t* experts;
  const A* weights;
  const std::int32_t* source;
  const std::int32_t* row_of;
  A* message;
  std::int64_t slots_of_rank;

  KOKKOS_FUNCTION void operator()(std::int64_t slot) const {
    std::int64_t pair = source == nullptr ? slot : source[slot];
    if (pair >= 0 && row_of != nullptr && row_of[pair] < 0) pair = -1;
    const std::int64_t rank = impl::quotient(slot, slots_of_rank);
    A* to = message + rank * slots_of_rank + slot;
    to[0] = pair < 0 ? A(0) : weights[pair];
    to[slots_of_rank] = pair < 0 ? A(-1) : static_cast<A>(experts[pair]);
  }
};

template <class A>
struct UnpackRouting {
  const A* message;
  std::int32_t* experts;
  A* weights;
  std::int64_t slots_of_rank, first, count;

  KOKKOS_FUNCTION void operator()(std::int64_t slot) const {
    const std::int64_t rank = impl::quotient(slot, slots_of_rank);
    const A* from = message + rank * slots_of_rank + slot;
    const std::int64_t expert = static_cast<std::int64_t>(from[slots_of_rank]) - first;
    weights[slot] = from[0];
    experts[slot] = expert >= 0 && expert < count ? static_cast<std::int32_t>(expert) : -1;
  }
};

template <class A>
struct ValuesOfPairs {
  const A* values;
  const std::int32_t* row_of;
  A* result;

  KOKKOS_FUNCTION void operator()(std::int64_t pair) const {
    result[pair] = row_of[pair] < 0 ? A(0) : values[row_of[pair]];
  }
};

}  // namespace

template <class Space>
void group_experts(Stream<Space>& stream, Matrix<const std::int32_t, Space> experts, std::int64_t size,
                   Matrix<std::int32_t, Space> groups) {
  const std::int64_t tokens = impl::rows_of(experts), topk = impl::columns_of(experts);
  impl::require_shape(size > 0 && size < INT32_MAX && impl::is_matrix(experts, tokens, topk) &&
                          impl::is_matrix(groups, tokens, topk),
                      "group_experts: experts and groups must be [tokens, topk], and size positive");
  launch(stream, "expert_exchange/groups", {backend::read(experts), backend::write(groups)},
         backend::Range{tokens * topk},
         GroupExperts{experts.data(), groups.data(), static_cast<std::int32_t>(size)});
}

template <class Space, class A>
void pack_routing(Stream<Space>& stream, Matrix<const std::int32_t, Space> experts,
                  Matrix<const A, Space> weights, Vector<const std::int32_t, Space> source,
                  Matrix<const std::int32_t, Space> row_of, Matrix<A, Space> message) {
  const std::int64_t tokens = impl::rows_of(experts), topk = impl::columns_of(experts);
  const std::int64_t ranks = impl::rows_of(message), slots_of_rank = impl::columns_of(message) / 2;
  const std::int64_t slots = ranks * slots_of_rank;
  impl::require_shape(impl::is_matrix(experts, tokens, topk) && impl::is_matrix(weights, tokens, topk) &&
                          (impl::is_empty(row_of) || impl::is_matrix(row_of, tokens, topk)) &&
                          impl::is_matrix(message, ranks, 2 * slots_of_rank) &&
                          (impl::is_empty(source) ? slots == tokens * topk : impl::is_vector(source, slots)),
                      "pack_routing: experts, weights and row_of must be [tokens, topk] and message [ranks, "
                      "2 slots / ranks] where "
                      "source is [slots], or where slots = tokens * topk");
  launch(stream, "expert_exchange/pack",
         {backend::read(experts), backend::read(weights), backend::read(source.data(), source.span()),
          backend::read(row_of.data(), row_of.span()), backend::write(message)},
         backend::Range{slots},
         PackRouting<A>{experts.data(), weights.data(), source.data(), row_of.data(), message.data(),
                        slots_of_rank});
}

template <class Space, class A>
void unpack_routing(Stream<Space>& stream, Matrix<const A, Space> message, std::int64_t first,
                    std::int64_t count, Matrix<std::int32_t, Space> experts, Matrix<A, Space> weights) {
  const std::int64_t tokens = impl::rows_of(experts), topk = impl::columns_of(experts);
  const std::int64_t ranks = impl::rows_of(message), slots_of_rank = impl::columns_of(message) / 2;
  impl::require_shape(impl::is_matrix(experts, tokens, topk) && impl::is_matrix(weights, tokens, topk) &&
                          impl::is_matrix(message, ranks, 2 * slots_of_rank) &&
                          ranks * slots_of_rank == tokens * topk,
                      "unpack_routing: experts and weights must be [tokens, topk] where message is [ranks, 2 "
                      "tokens topk / ranks]");
  launch(stream, "expert_exchange/unpack",
         {backend::read(message), backend::write(experts), backend::write(weights)},
         backend::Range{tokens * topk},
         UnpackRouting<A>{message.data(), experts.data(), weights.data(), slots_of_rank, first, count});
}

template <class Space, class A>
void values_of_pairs(Stream<Space>& stream, Vector<const A, Space> values,
                     Matrix<const std::int32_t, Space> row_of, Matrix<A, Space> result) {
  const std::int64_t tokens = impl::rows_of(row_of), topk = impl::columns_of(row_of);
  impl::require_shape(values.span_is_contiguous() && impl::is_matrix(row_of, tokens, topk) &&
                          impl::is_matrix(result, tokens, topk),
                      "values_of_pairs: row_of and result must be [tokens, topk]");
  launch(stream, "expert_exchange/values",
         {backend::read(values), backend::read(row_of), backend::write(result)},
         backend::Range{tokens * topk}, ValuesOfPairs<A>{values.data(), row_of.data(), result.data()});
}

#define ENCORE_INSTANTIATE(SPACE, A)                                                                         \
  template void pack_routing<SPACE, A>(Stream<SPACE>&, Matrix<const std::int32_t, SPACE>,                    \
                                       Matrix<const A, SPACE>, Vector<const std::int32_t, SPACE>,            \
                                       Matrix<const std::int32_t, SPACE>, Matrix<A, SPACE>);                 \
  template void unpack_routing<SPACE, A>(Stream<SPACE>&, Matrix<const A, SPACE>, std::int64_t, std::int64_t, \
                                         Matrix<std::int32_t, SPACE>, Matrix<A, SPACE>);                     \
  template void values_of_pairs<SPACE, A>(Stream<SPACE>&, Vector<const A, SPACE>,                            \
                                          Matrix<const std::int32_t, SPACE>, Matrix<A, SPACE>);
#define ENCORE_INSTANTIATE_SPACE(SPACE)                                                               \
  template void group_experts<SPACE>(Stream<SPACE>&, Matrix<const std::int32_t, SPACE>, std::int64_t, \
                                     Matrix<std::int32_t, SPACE>);                                    \
  ENCORE_INSTANTIATE(SPACE, float)
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE_SPACE)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial, double))
#undef ENCORE_INSTANTIATE_SPACE
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
