// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mathematics.hpp"

/// Activations of dense and expert MLPs, element by element. NaN stays NaN.
namespace encore::kernels::impl {

/// A gated activation's value and its derivatives with respect to gate and up.
template <class A>
struct GatedSlopes {
  A value, gate, up;
};

/// gate * logistic(gate) * up: Shazeer, "GLU Variants Improve Transformer", 2020.
template <class A>
struct Swiglu {
  static constexpr bool gated = true;

  KOKKOS_FUNCTION A value(A gate, A up) const { return gate * logistic(gate) * up; }
  KOKKOS_FUNCTION GatedSlopes<A> slopes(A gate, A up) const {
    const A s = logistic(gate);
    return {gate * s * up, up * s * (1 + gate * (1 - s)), gate * s};
  }
};

/// GPT-OSS: g * logistic(1.702 g) * (u + 1) with g = min(gate, limit) and u = up in [-limit, limit]. At a
/// limit the derivative is the inner one, as torch.clamp has it.
template <class A>
struct SwigluClamped {
  static constexpr bool gated = true;
  static constexpr A alpha = A(1.702);

  A limit;

  KOKKOS_FUNCTION A value(A gate, A up) const {
    const A g = gate > limit ? limit : gate;
    return g * logistic(alpha * g) * (clamped(up) + 1);
  }
  KOKKOS_FUNCTION GatedSlopes<A> slopes(A gate, A up) const {
    const A g = gate > limit ? limit : gate, u = clamped(up) + 1;
    const A s = logistic(alpha * g);
    return {g * s * u, gate > limit ? A(0) : u * s * (1 + alpha * g * (1 - s)),
            up > limit || up < -limit ? A(0) : g * s};
  }

 private:
  KOKKOS_FUNCTION A clamped(A up) const { return up > limit ? limit : up < -limit ? -limit : up; }
};

/// max(x, 0)^2: So et al., "Primer", 2021.
template <class A>
struct ReluSquared {
  static constexpr bool gated = false;

  KOKKOS_FUNCTION A value(A x) const { return x < 0 ? A(0) : x * x; }
  KOKKOS_FUNCTION A slope(A x) const { return x < 0 ? A(0) : 2 * x; }
};

}  // namespace encore::kernels::impl
