// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/decode.hpp>
#include <encore/kernels/state_space.hpp>

namespace encore::kernels {

/// causal_convolution_forward, token by token: what it needs of the tokens before is in `window` [sequences, width - 1,
/// channels], oldest first, zero before the first token, and is moved on. input and output [rows, channels], weight
/// [channels, width] with width 2 to 8, bias [channels] or empty. Throws ConfigurationError where shapes do not fit.
/// May be captured.
template <class Space, class T>
void causal_convolution_step(Stream<Space>& stream, const DecodeRows<Space>& rows, Columns<const T> input,
                             Matrix<const T, Space> weight, Vector<const T, Space> bias,
                             Vector<T, Space> window, Columns<T> output);

/// state_space_forward, token by token, from `state` [sequences, heads, head_dim, state], zero before the first token,
/// which is moved on. Of `shape` batch must be the sequences and tokens those of a step; chunks do not matter.
/// output [rows, heads * head_dim]. Throws ConfigurationError where shapes do not fit. May be captured.
template <class Space, class T>
void state_space_step(Stream<Space>& stream, const DecodeRows<Space>& rows, const StateSpaceShape& shape,
                      const StateSpaceInputs<Space, T>& inputs, Vector<Accumulator<T>, Space> state,
                      Columns<T> output);

}  // namespace encore::kernels
