// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/decode_attention.hpp>

#include "divisor.hpp"
#include "shapes.hpp"

namespace encore::kernels {

namespace {

/// An item is an entry of a head or, where there is a rotation, two that turn together.
template <class T>
struct AppendToCache {
  using A = Accumulator<T>;

  const std::int32_t* first;
  const std::int32_t* count;
  const T* projected;
  const T* normalized;
  const A* cosine;
  const A* sine;
  T* queries;
  T* keys;
  T* values;
  impl::Divisor step_tokens, all_heads, parts;
  std::int64_t heads, kv_heads, head_dim, capacity;
  bool interleaved;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t row_head = parts.quotient(item), part = item - row_head * parts.divisor();
    const std::int64_t row = all_heads.quotient(row_head), head = row_head - row * all_heads.divisor();
    const std::int64_t sequence = step_tokens.quotient(row), t = row - sequence * step_tokens.divisor();
    const std::int64_t position = first[sequence] + t;
    const bool holds = t < count[sequence] && position < capacity;
    const std::int64_t place = (sequence * capacity + position) * kv_heads;
    if (head < heads) {
      store(source(row, head), queries + (row * heads + head) * head_dim, part, holds ? position : 0, true);
    } else if (!holds) {
      return;
    } else if (head < heads + kv_heads) {
      store(source(row, head), keys + (place + head - heads) * head_dim, part, position, true);
    } else {
      store(projected + (row * all_heads.divisor() + head) * head_dim,
            values + (place + head - heads - kv_heads) * head_dim, part, position, false);
    }
  }

 private:
  KOKKOS_FUNCTION const T* source(std::int64_t row, std::int64_t head) const {
    return normalized != nullptr ? normalized + (row * (heads + kv_heads) + head) * head_dim
                                 : projected + (row * all_heads.divisor() + head) * head_dim;
  }

  KOKKOS_FUNCTION void store(const T* from, T* to, std::int64_t part, std::int64_t position,
                             bool rotates) const {
    if (cosine == nullptr) {
      to[part] = from[part];
      return;
    }
    const std::int64_t half = parts.divisor();
    const std::int64_t one = interleaved ? 2 * part : part, two = interleaved ? 2 * part + 1 : part + half;
    if (!rotates) {
      to[one] = from[one];
      to[two] = from[two];
      return;
    }
    const A x = static_cast<A>(from[one]), y = static_cast<A>(from[two]);
    const A c = cosine[position * half + part], s = sine[position * half + part];
    to[one] = static_cast<T>(x * c - y * s);
    to[two] = static_cast<T>(x * s + y * c);
  }
};

}  // namespace

template <class Space, class T>
void append_to_cache(Stream<Space>& stream, const DecodeRows<Space>& rows, const DecodeAttentionShape& shape,
                     Matrix<const T, Space> projected, Matrix<const T, Space> normalized, RopeStyle style,
                     Matrix<const Accumulator<T>, Space> cosine, Matrix<const Accumulator<T>, Space> sine,
                     Matrix<T, Space> queries, Matrix<T, Space> keys, Matrix<T, Space> values) {
  const bool rotates = !impl::is_empty(cosine);
  const std::int64_t count = rows.rows(), places = rows.sequences() * shape.capacity;
  const std::int64_t half = shape.head_dim / 2, both = (shape.heads + shape.kv_heads) * shape.head_dim;
  impl::require_shape(
      impl::is_vector(rows.count, rows.sequences()) && impl::is_matrix(projected, count, shape.row()) &&
          (impl::is_empty(normalized) || impl::is_matrix(normalized, count, both)) &&
          impl::is_matrix(queries, count, shape.heads * shape.head_dim) &&
          impl::is_matrix(keys, places, shape.cached()) && impl::is_matrix(values, places, shape.cached()),
      "append_to_cache: projected must be [rows, (heads + 2 kv_heads) * head_dim], queries [rows, "
      "heads * head_dim] and the caches [sequences * capacity, kv_heads * head_dim]");
  impl::require_shape(
      !rotates || (shape.head_dim == 2 * half && impl::has_rows(cosine, shape.capacity, half) &&
                   impl::has_rows(sine, shape.capacity, half)),
      "append_to_cache: the tables must be [>= capacity, head_dim / 2] of an even head_dim");
  const std::int64_t all_heads = shape.heads + 2 * shape.kv_heads, parts = rotates ? half : shape.head_dim;
  launch(stream, "decode/append_to_cache",
         {backend::read(rows.first), backend::read(rows.count), backend::read(projected),
          backend::read(normalized), backend::read(cosine), backend::read(sine), backend::write(queries),
          backend::write(keys), backend::write(values)},
         backend::Range{count * all_heads * parts},
         AppendToCache<T>{rows.first.data(), rows.count.data(), projected.data(), normalized.data(),
                          cosine.data(), sine.data(), queries.data(), keys.data(), values.data(),
                          impl::Divisor(rows.tokens), impl::Divisor(all_heads), impl::Divisor(parts),
                          shape.heads, shape.kv_heads, shape.head_dim, shape.capacity,
                          style == RopeStyle::interleaved});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                 \
  template void append_to_cache<SPACE, T>(                                                           \
      Stream<SPACE>&, const DecodeRows<SPACE>&, const DecodeAttentionShape&, Matrix<const T, SPACE>, \
      Matrix<const T, SPACE>, RopeStyle, Matrix<const Accumulator<T>, SPACE>,                        \
      Matrix<const Accumulator<T>, SPACE>, Matrix<T, SPACE>, Matrix<T, SPACE>, Matrix<T, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
