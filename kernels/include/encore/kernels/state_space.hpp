// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/columns.hpp>

namespace encore::kernels {

// The selective state space of Mamba-2: Dao and Gu, "Transformers are SSMs", 2024, section 6. Per head h, with
// the states B_t and C_t of the group that h belongs to:
//   step_t  = clamp(softplus(raw step_t + step_bias), step_minimum, step_maximum)
//   decay_t = exp(-exp(decay_log) step_t)
//   state_t = decay_t state_(t-1) + step_t x_t B_t^T                         [head_dim, state]
//   y_t     = state_t C_t + skip x_t
// computed by chunks: inside one as masked products of tokens with tokens, from one to the next through the
// states. The chunk changes the order of the sums only. Every exponent is a difference of sums of logarithms of
// decays within a chunk, and never positive.

struct StateSpaceShape {
  std::int64_t batch = 0;  ///< sequences, which do not mix
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t state = 0;
  std::int64_t groups = 1;  ///< of heads / groups neighbouring heads that share B and C
  std::int64_t chunk = 256;
  double step_minimum = 0;
  double step_maximum = 0;  ///< 0: none

  KOKKOS_FUNCTION std::int64_t rows() const { return batch * tokens; }
  KOKKOS_FUNCTION std::int64_t chunks() const { return (tokens + chunk - 1) / chunk; }
  friend bool operator==(const StateSpaceShape&, const StateSpaceShape&) = default;
};

/// What a scan reads. Rows are those of one sequence after the other.
template <class Space, class T>
struct StateSpaceInputs {
  Columns<const T> x;                ///< [rows, heads * head_dim]
  Columns<const T> b;                ///< [rows, groups * state]
  Columns<const T> c;                ///< [rows, groups * state]
  Columns<const T> step;             ///< [rows, heads]
  Vector<const T, Space> step_bias;  ///< [heads]
  Vector<const T, Space> decay_log;  ///< [heads]
  Vector<const T, Space> skip;       ///< [heads]
};

/// What forward leaves for backward.
template <class Space, class A>
struct StateSpaceSaved {
  Matrix<A, Space> steps;  ///< [heads, rows]
  Matrix<A, Space>
      decays;  ///< [heads, rows], logarithms of decays, summed from the chunk's start to the token
  Matrix<A, Space> states;  ///< [batch * chunks * heads, head_dim * state], entering each chunk
};

/// Gradients of the inputs are set; those of the parameters set, or added to if `accumulate`.
template <class Space, class T, class G>
struct StateSpaceGradients {
  Columns<T> x, b, c, step;  ///< as in StateSpaceInputs
  Vector<G, Space> step_bias, decay_log, skip;
  bool accumulate = false;
};

/// Elements of the workspace, in Accumulator<T>. What it holds is of no use after the call.
std::int64_t state_space_forward_workspace(const StateSpaceShape& shape);
std::int64_t state_space_backward_workspace(const StateSpaceShape& shape);

/// output [rows, heads * head_dim] = y. May be recorded. Throws ConfigurationError where shapes do not fit.
template <class Space, class T>
void state_space_forward(Stream<Space>& stream, const StateSpaceShape& shape,
                         const StateSpaceInputs<Space, T>& inputs, Columns<T> output,
                         const StateSpaceSaved<Space, Accumulator<T>>& saved,
                         Vector<Accumulator<T>, Space> workspace);

/// All gradients from that of the output. No gradient may overlap an input. May be recorded and throws as above.
template <class Space, class T, class G>
void state_space_backward(Stream<Space>& stream, const StateSpaceShape& shape,
                          const StateSpaceInputs<Space, T>& inputs, Columns<const T> output_gradient,
                          const StateSpaceSaved<Space, Accumulator<T>>& saved,
                          const StateSpaceGradients<Space, T, G>& gradients,
                          Vector<Accumulator<T>, Space> workspace);

}  // namespace encore::kernels
