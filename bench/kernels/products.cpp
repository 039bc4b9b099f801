// SPDX-License-Identifier: Apache-2.0
//
// Dense products of a layer and of the head:
//   product/<qkv|output|gate_up|down|logits>/<forward|input_gradient|weight_gradient>/<choice>/<workload>/<backend>
// choice: `library` takes the library's first algorithm, `measured` the one that was the fastest (CUDA alone).
#include "turns.hpp"

#include <encore/backend/blas.hpp>

namespace encore::bench {

namespace {

using T = bfloat16;

enum class Pass { forward, input_gradient, weight_gradient };

/// A projection from `inputs` to `outputs` columns.
struct Projection {
  const char* name;
  std::int64_t inputs, outputs;
};

Projection projection_of(const Workload& w, std::size_t which) {
  const Projection all[] = {{"qkv", w.hidden, w.projected()},
                            {"output", w.width(), w.hidden},
                            {"gate_up", w.hidden, 2 * w.ffn},
                            {"down", w.ffn, w.hidden},
                            {"logits", w.hidden, w.vocab}};
  return all[which];
}
constexpr std::size_t projections = 5;

template <class Space>
struct Operands {
  Stream<Space>& stream;
  Projection projection;
  std::int64_t tokens;
  std::shared_ptr<Blas<Space>> blas;
  NoiseArray<Space, T> input, weight, output;

  Operands(Stream<Space>& on, std::uint64_t seed, const Workload& w, const Projection& of,
           std::shared_ptr<Blas<Space>> by)
      : stream(on),
        projection(of),
        tokens(w.tokens()),
        blas(std::move(by)),
        input(on, w.tokens() * of.inputs, seed),
        weight(on, of.inputs * of.outputs, seed + 1),
        output(on, w.tokens() * of.outputs, seed + 2) {}

  template <class Element>
  MatrixOperand<Element> inputs() const {
    return {input.data(), tokens, projection.inputs, projection.inputs};
  }
  template <class Element>
  MatrixOperand<Element> outputs() const {
    return {output.data(), tokens, projection.outputs, projection.outputs};
  }
  template <class Element>
  MatrixOperand<Element> weights() const {
    return {weight.data(), projection.outputs, projection.inputs, projection.inputs};
  }
  void run(Pass pass) const {
    switch (pass) {
      case Pass::forward:
        return blas->template multiply<T, T>(stream, "product", Transpose::no, inputs<const T>(),
                                             Transpose::yes, weights<const T>(), outputs<T>());
      case Pass::input_gradient:
        return blas->template multiply<T, T>(stream, "product", Transpose::no, outputs<const T>(),
                                             Transpose::no, weights<const T>(), inputs<T>());
      case Pass::weight_gradient:
        return blas->template multiply<T, T>(stream, "product", Transpose::yes, outputs<const T>(),
                                             Transpose::no, inputs<const T>(), weights<T>());
    }
  }
};

template <class Space>
void add_product(const Options& options, std::size_t which, const std::string& pass_name, Pass pass,
                 bool tuned) {
  const std::string name = std::string("product/") + projection_of(workloads[0], which).name + "/" +
                           pass_name + (tuned ? "/measured" : "/library");
  add_for_workloads<Space>(
      options, name,
      [which](const Workload& w) {
        const Projection p = projection_of(w, which);
        return p.inputs > 0 && p.outputs > 0;  // Experts have no products of an MLP.
      },
      [which](const Workload& w) {
        const Projection p = projection_of(w, which);
        return Work{bytes_of<T>(w.tokens() * (p.inputs + p.outputs) + p.inputs * p.outputs),
                    2.0 * static_cast<double>(w.tokens() * p.inputs) * static_cast<double>(p.outputs)};
      },
      [which, pass, tuned, blas = OneForAll<Blas<Space>>()](auto& stream, auto seed, auto& w) {
        const auto make_blas = [&] {
          auto made = std::make_shared<Blas<Space>>(stream);
          made->enable_tuning(tuned);
          return made;
        };
        return [x = std::make_shared<Operands<Space>>(stream, seed, w, projection_of(w, which),
                                                      blas.get(make_blas)),
                pass] { x->run(pass); };
      });
}

template <class Space>
void add_to(const Options& options) {
  const std::pair<const char*, Pass> passes[] = {{"forward", Pass::forward},
                                                 {"input_gradient", Pass::input_gradient},
                                                 {"weight_gradient", Pass::weight_gradient}};
  for (std::size_t which = 0; which < projections; ++which)
    for (const auto& [pass_name, pass] : passes) {
      add_product<Space>(options, which, pass_name, pass, false);
      if (!is_host_space<Space>) add_product<Space>(options, which, pass_name, pass, true);
    }
}

}  // namespace

ENCORE_DEFINE_FAMILY(products)

}  // namespace encore::bench
