// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shapes.hpp"

namespace encore::kernels::impl {

/// output[e] = operation(inputs[0][e], ...), computed in Accumulator<Input>. The output may be an input.
template <int Width, class Operation, class Output, class Input, int Inputs>
struct Map {
  Operation operation;
  Output* output;
  const Input* input[Inputs];
  std::int64_t size;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    if constexpr (Width == 1) {
      output[item] = apply([&](int k) { return input[k][item]; });
    } else if ((item + 1) * Width <= size) {
      backend::Packet<Input, Width> in[Inputs];
      for (int k = 0; k < Inputs; ++k) in[k] = backend::load_packet<Width>(input[k], item);
      backend::Packet<Output, Width> out;
      for (int i = 0; i < Width; ++i) out[i] = apply([&](int k) { return in[k][i]; });
      backend::store_packet(output, item, out);
    } else {
      for (std::int64_t e = item * Width; e < size; ++e)
        output[e] = apply([&](int k) { return input[k][e]; });
    }
  }

 private:
  template <class Element>
  KOKKOS_FUNCTION Output apply(const Element& element) const {
    using A = Accumulator<Input>;
    if constexpr (Inputs == 1)
      return static_cast<Output>(operation(static_cast<A>(element(0))));
    else
      return static_cast<Output>(operation(static_cast<A>(element(0)), static_cast<A>(element(1))));
  }
};

template <class Space, class Operation, class Output, class Input, class... More>
void launch_map(Stream<Space>& stream, const char* label, const Operation& operation, std::int64_t size,
                Output* output, const Input* input, const More*... more) {
  with_packet_width<Space>(
      0,  // The last packet may be partial.
      [&](auto width) {
        using Functor = Map<width, Operation, Output, Input, 1 + static_cast<int>(sizeof...(More))>;
        launch(stream, label,
               {backend::read(input, size), backend::read(more, size)..., backend::write(output, size)},
               backend::Range{rounded_up_quotient(size, width)},
               Functor{operation, output, {input, more...}, size});
      },
      output, input, more...);
}

}  // namespace encore::kernels::impl
