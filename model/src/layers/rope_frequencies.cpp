// SPDX-License-Identifier: Apache-2.0
#include <encore/model/step_program.hpp>

namespace encore::model {

kernels::RopeFrequencies rope_frequencies(const ModelConfiguration& model) {
  if (model.rope_factor == 1 && model.rope_attention_factor == 0) return model.rope_theta;
  const std::int64_t original = model.rope_original_seq > 0 ? model.rope_original_seq : model.seq;
  return kernels::yarn_frequencies(model.rope_theta, model.head_dim,
                                   {model.rope_factor, static_cast<double>(original), model.rope_beta_fast,
                                    model.rope_beta_slow, model.rope_truncate, model.rope_attention_factor});
}

}  // namespace encore::model
