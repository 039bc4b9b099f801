// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/decode_attention.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "tolerance.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;
using kernels::DecodeAttentionShape;
using kernels::RopeStyle;

namespace {

struct Step {
  std::vector<std::int32_t> first, count;
  std::int64_t tokens;
  std::int64_t sequences() const { return std::ssize(first); }
  std::int64_t rows() const { return sequences() * tokens; }

  template <class Space>
  kernels::DecodeRows<Space> on(KernelRun<Space>& run) const {
    return {run.template input<std::int32_t>(first), run.template input<std::int32_t>(count), tokens};
  }
};

std::vector<double> attention(const Step& step, const DecodeAttentionShape& s,
                              const std::vector<double>& queries, const std::vector<double>& keys,
                              const std::vector<double>& values, const std::vector<double>& sinks) {
  std::vector<double> output(queries.size(), 0.0);
  for (std::int64_t row = 0; row < step.rows(); ++row) {
    const std::int64_t sequence = row / step.tokens, t = row % step.tokens;
    if (t >= step.count[sequence]) continue;
    const std::int64_t position = step.first[sequence] + t;
    const std::int64_t from = s.window > 0 ? std::max<std::int64_t>(0, position + 1 - s.window) : 0;
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t kv = h / (s.heads / s.kv_heads);
      const double* query = queries.data() + (row * s.heads + h) * s.head_dim;
      const auto at = [&](std::int64_t p) {
        return ((sequence * s.capacity + p) * s.kv_heads + kv) * s.head_dim;
      };
      std::vector<double> scores;
      double largest = sinks.empty() ? -HUGE_VAL : sinks[h];
      for (std::int64_t p = from; p <= position; ++p) {
        double score = 0;
        for (std::int64_t d = 0; d < s.head_dim; ++d) score += query[d] * keys[at(p) + d];
        scores.push_back(s.scale * score);
        largest = std::max(largest, scores.back());
      }
      double sum = sinks.empty() ? 0 : std::exp(sinks[h] - largest);
      for (double& score : scores) sum += score = std::exp(score - largest);
      for (std::int64_t p = from; p <= position; ++p)
        for (std::int64_t d = 0; d < s.head_dim; ++d)
          output[(row * s.heads + h) * s.head_dim + d] += scores[p - from] / sum * values[at(p) + d];
    }
  }
  return output;
}

/// What no query may see is not a number.
void poison_unseen(const Step& step, const DecodeAttentionShape& s, std::vector<double>& cache) {
  for (std::int64_t sequence = 0; sequence < step.sequences(); ++sequence)
    for (std::int64_t p = 0; p < s.capacity; ++p) {
      const std::int64_t end = step.first[sequence] + step.count[sequence];
      const std::int64_t begin = s.window > 0 ? step.first[sequence] + 1 - s.window : 0;
      if (p >= begin && p < end) continue;
      const auto row = cache.begin() + (sequence * s.capacity + p) * s.cached();
      std::fill(row, row + s.cached(), std::nan(""));
    }
}

template <class Space, class T>
void check(HostAgreement& agreement, const Step& step, DecodeAttentionShape shape, bool with_sinks) {
  using A = backend::Accumulator<T>;
  shape.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const std::string name = std::to_string(step.rows()) + " rows from " + std::to_string(step.first.front()) +
                           ", heads " + std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) +
                           "x" + std::to_string(shape.head_dim) + ", capacity " +
                           std::to_string(shape.capacity) + ", window " + std::to_string(shape.window) +
                           (with_sinks ? ", sinks" : "") + std::to_string(sizeof(T));
  INFO(name);
  const std::int64_t places = step.sequences() * shape.capacity;
  const auto q = normal_values<T>(step.rows() * shape.heads * shape.head_dim, 1);
  auto k = normal_values<T>(places * shape.cached(), 2), v = normal_values<T>(places * shape.cached(), 3);
  poison_unseen(step, shape, k);
  poison_unseen(step, shape, v);
  const auto s = with_sinks ? normal_values<T>(shape.heads, 4) : std::vector<double>();
  KernelRun<Space> run;
  const auto rows = step.on(run);
  const auto queries = run.template input<T>(q, shape.heads * shape.head_dim);
  const auto keys = run.template input<T>(k, shape.cached()),
             values = run.template input<T>(v, shape.cached());
  const auto sinks = with_sinks ? run.template input<T>(s) : backend::Vector<const T, Space>();
  const std::int64_t elements = kernels::decode_attention_workspace<Space>(shape, step.rows());
  const backend::Vector<A, Space> workspace(run.template workspace<A>(elements, 1).data(),
                                            static_cast<std::size_t>(elements));
  const auto output = run.template output<T>(step.rows(), shape.heads * shape.head_dim);
  agreement.add<Space>(name, run.execute([&] {
    kernels::decode_attention<Space, T>(run.stream(), rows, shape, queries, keys, values, sinks, workspace,
                                        output);
  }));
  check_close(run.values(output), attention(step, shape, q, k, v, s), tolerance<T>());
}

}  // namespace

TEST_CASE("decode attention is softmax of the scores times the values of what each query sees in the cache") {
  HostAgreement agreement;
  const Step one{{0, 37, 255, 299}, {1, 1, 1, 1}, 1};
  const Step some{{0, 130, 64}, {3, 0, 2}, 3};
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    // Groups of one head, of several, of more than a team takes; heads that are no whole packets; the widest.
    for (const auto& [heads, kv_heads, head_dim] : std::vector<std::array<std::int64_t, 3>>{
             {4, 4, 64}, {8, 2, 128}, {20, 1, 32}, {6, 2, 20}, {2, 2, 256}, {3, 3, 7}})
      for (const std::int64_t window : {0, 5, 100}) {
        check<Space, T>(agreement, one, {heads, kv_heads, head_dim, 300, 1, window}, window == 5);
        check<Space, T>(agreement, some, {heads, kv_heads, head_dim, 160, 1, window}, window == 0);
      }
  });
}

TEST_CASE("decode attention over a long cache is cut into stretches and put together again") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    for (const std::int32_t position : {0, 15, 16, 700, 2999}) {
      const Step step{{position}, {1}, 1};
      check<Space, T>(agreement, step, {4, 2, 64, 3000, 1, 0}, false);
      check<Space, T>(agreement, step, {4, 2, 64, 3000, 1, 1024}, true);
    }
  });
}

TEST_CASE("keys and values go to their places in the cache, rotated by the angles of their positions") {
  HostAgreement agreement;
  const Step step{{0, 5, 9, 11}, {2, 1, 0, 2}, 2};  // The last sequence's second token lies behind the cache.
  const std::int64_t capacity = 12, heads = 6, kv_heads = 2, head_dim = 16, half = head_dim / 2;
  const DecodeAttentionShape shape{heads, kv_heads, head_dim, capacity, 1, 0};
  enum class Rotation { none, half_split, interleaved };
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    const std::vector<Rotation> rotations{Rotation::none, Rotation::half_split, Rotation::interleaved};
    for (const Rotation rotation : rotations)
      for (const bool normalized : {false, true}) {
        const std::string name = std::to_string(static_cast<int>(rotation)) +
                                 (normalized ? " normalized " : " ") + std::to_string(sizeof(T));
        INFO(name);
        const std::int64_t both = (heads + kv_heads) * head_dim, places = step.sequences() * capacity;
        const auto p = normal_values<T>(step.rows() * shape.row(), 1),
                   n = normal_values<T>(step.rows() * both, 2);
        const auto k = normal_values<T>(places * shape.cached(), 3),
                   v = normal_values<T>(places * shape.cached(), 4);
        std::vector<double> c, s;
        for (std::int64_t i = 0; i < capacity * half; ++i) {
          const double angle =
              static_cast<double>(i / half) * std::pow(100.0, -static_cast<double>(i % half) / half);
          c.push_back(std::cos(angle));
          s.push_back(std::sin(angle));
        }
        KernelRun<Space> run;
        const auto rows = step.on(run);
        const auto projected = run.template input<T>(p, shape.row());
        const auto of_norm = normalized ? run.template input<T>(n, both) : backend::Matrix<const T, Space>();
        using Table = backend::Matrix<const A, Space>;
        const bool turns = rotation != Rotation::none;
        const auto cosine = turns ? run.template input<A>(c, half) : Table();
        const auto sine = turns ? run.template input<A>(s, half) : Table();
        const auto queries = run.template output<T>(step.rows(), heads * head_dim);
        const auto keys = run.template in_out<T>(k, shape.cached()),
                   values = run.template in_out<T>(v, shape.cached());
        const RopeStyle style =
            rotation == Rotation::interleaved ? RopeStyle::interleaved : RopeStyle::half_split;
        agreement.add<Space>(name, run.execute([&] {
          kernels::append_to_cache<Space, T>(run.stream(), rows, shape, projected, of_norm, style, cosine,
                                             sine, queries, keys, values);
        }));
        auto k_expected = k, v_expected = v;
        std::vector<double> q_expected;
        const auto rotated = [&](const double* head, std::int64_t position, std::int64_t d) {
          if (!turns) return head[d];
          const bool inter = rotation == Rotation::interleaved;
          const std::int64_t pair = inter ? d / 2 : d % half;
          const bool is_second = inter ? d % 2 == 1 : d >= half;
          const double x = head[inter ? 2 * pair : pair], y = head[inter ? 2 * pair + 1 : pair + half];
          const double cos = c[position * half + pair], sin = s[position * half + pair];
          return is_second ? x * sin + y * cos : x * cos - y * sin;
        };
        std::vector<double> q_result;
        const auto q_all = run.values(queries);
        for (std::int64_t row = 0; row < step.rows(); ++row) {
          const std::int64_t sequence = row / step.tokens, t = row % step.tokens;
          const std::int64_t position = step.first[sequence] + t;
          if (t >= step.count[sequence] || position >= capacity) continue;
          const double* const from = normalized ? n.data() + row * both : p.data() + row * shape.row();
          for (std::int64_t e = 0; e < heads * head_dim; ++e) {
            q_expected.push_back(rotated(from + e / head_dim * head_dim, position, e % head_dim));
            q_result.push_back(q_all[row * heads * head_dim + e]);
          }
          for (std::int64_t e = 0; e < shape.cached(); ++e) {
            const std::int64_t place = (sequence * capacity + position) * shape.cached() + e;
            k_expected[place] =
                rotated(from + heads * head_dim + e / head_dim * head_dim, position, e % head_dim);
            v_expected[place] = p[row * shape.row() + both + e];
          }
        }
        check_close(q_result, q_expected, tolerance<T>());
        check_close(run.values(keys), k_expected, tolerance<T>());
        CHECK(run.values(values) == v_expected);
      }
  });
}

TEST_CASE("decode attention refuses shapes that do not fit") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const Step step{{0}, {1}, 1};
    const auto rows = step.on(run);
    const auto matrix = run.template output<float>(1, 8);
    const auto refuse = [&](const DecodeAttentionShape& shape) {
      CHECK_THROWS_AS((kernels::decode_attention<Space, float>(run.stream(), rows, shape, matrix, matrix,
                                                               matrix, {}, {}, matrix)),
                      ConfigurationError);
    };
    refuse({3, 2, 4, 1, 1, 0});
    refuse({1, 1, 257, 1, 1, 0});
    refuse({2, 2, 4, 9, 1, 0});
  });
}
