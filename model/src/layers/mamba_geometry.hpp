// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stack_builder.hpp"

#include <encore/kernels/state_space.hpp>

namespace encore::model {

/// What the Mamba segments' bodies need to know of the model: sizes, and where the input projection's row has what.
struct MambaGeometry {
  kernels::StateSpaceShape scan;
  std::int64_t norm_groups;
  double epsilon;

  std::int64_t inner() const { return scan.heads * scan.head_dim; }
  std::int64_t groups_state() const { return scan.groups * scan.state; }
  /// x, B and C, which go through the convolution.
  std::int64_t mixed() const { return inner() + 2 * groups_state(); }
  /// The gate, x, B, C and the raw steps.
  std::int64_t projected() const { return inner() + mixed() + scan.heads; }

  template <class Space, class T>
  kernels::Columns<T> gate_of(const backend::Matrix<T, Space>& of) const {
    return kernels::columns_of<T, Space>(of, 0, inner());
  }
  template <class Space, class T>
  kernels::Columns<T> mixed_of(const backend::Matrix<T, Space>& of) const {
    return kernels::columns_of<T, Space>(of, inner(), mixed());
  }
  template <class Space, class T>
  kernels::Columns<T> step_of(const backend::Matrix<T, Space>& of) const {
    return kernels::columns_of<T, Space>(of, inner() + mixed(), scan.heads);
  }
};

template <class Space, class T, class G>
MambaGeometry mamba_geometry_of(const StackBuilder<Space, T, G>& builder) {
  const ModelConfiguration& model = builder.local;
  return {{builder.shape.sequences, builder.shape.tokens, model.mamba_heads, model.mamba_head_dim,
           model.mamba_state, model.mamba_groups, model.mamba_chunk, model.mamba_step_minimum,
           model.mamba_step_maximum},
          model.mamba_norm_groups,
          model.norm_epsilon};
}

}  // namespace encore::model
