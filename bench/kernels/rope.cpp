// SPDX-License-Identifier: Apache-2.0
//
// Rotation of queries and keys in a fused projection, in place: rope/<forward|backward>/<workload>/<backend>
#include "turns.hpp"

#include <encore/kernels/rope.hpp>

namespace encore::bench {

namespace {

using T = bfloat16;

template <class Space>
struct Projection {
  Stream<Space>& stream;
  Workload workload;
  NoiseArray<Space, T> data;
  PoisonedArray<Space, float> cosine, sine;

  Projection(Stream<Space>& on, std::uint64_t seed, const Workload& w)
      : stream(on),
        workload(w),
        data(on, w.tokens() * w.projected(), seed),
        cosine(on, w.tokens_of_sequence * w.head_dim / 2),
        sine(on, w.tokens_of_sequence * w.head_dim / 2) {
    kernels::rope_tables<Space, float>(stream, 1e4, table<float>(cosine), table<float>(sine));
  }

  template <class Element>
  Matrix<Element, Space> table(const PoisonedArray<Space, float>& array) const {
    return Matrix<Element, Space>{array.data(), static_cast<std::size_t>(workload.tokens_of_sequence),
                                  static_cast<std::size_t>(workload.head_dim / 2)};
  }
  void run(bool inverse) const {
    kernels::rope<Space, T>(stream, kernels::RopeStyle::half_split, table<const float>(cosine),
                            table<const float>(sine), data.data(), workload.tokens(),
                            workload.tokens_of_sequence, workload.heads + workload.kv_heads,
                            workload.head_dim, workload.projected(), inverse);
  }
};

template <class Space>
void add_to(const Options& options) {
  const auto work = [](const Workload& w) {
    return Work{2 * bytes_of<T>(w.tokens() * (w.heads + w.kv_heads) * w.head_dim)};
  };
  for (const bool inverse : {false, true})
    add_for_workloads<Space>(options, inverse ? "rope/backward" : "rope/forward", always, work,
                             [inverse](auto& stream, auto seed, auto& w) {
                               return [x = std::make_shared<Projection<Space>>(stream, seed, w), inverse] {
                                 x->run(inverse);
                               };
                             });
}

}  // namespace

ENCORE_DEFINE_FAMILY(rope)

}  // namespace encore::bench
