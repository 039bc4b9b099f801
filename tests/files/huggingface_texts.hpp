// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

// Files as they are published; the tests change one field at a time.

inline nlohmann::json qwen3_json() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"model_type", "qwen3"},
          {"vocab_size", 96},
          {"hidden_size", 48},
          {"intermediate_size", 80},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"max_position_embeddings", 64},
          {"attention_bias", false},
          {"hidden_act", "silu"},
          {"use_sliding_window", false},
          {"sliding_window", 9},
          {"max_window_layers", 4},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling", nullptr},
          {"torch_dtype", "bfloat16"}};
}

inline nlohmann::json qwen3_moe_json() {
  nlohmann::json fields = qwen3_json();
  fields.update({{"architectures", {"Qwen3MoeForCausalLM"}},
                 {"model_type", "qwen3_moe"},
                 {"intermediate_size", 56},
                 {"head_dim", 8},
                 {"moe_intermediate_size", 24},
                 {"num_experts", 6},
                 {"num_experts_per_tok", 2},
                 {"decoder_sparse_step", 2},
                 {"mlp_only_layers", nlohmann::json::array()},
                 {"norm_topk_prob", false},
                 {"output_router_logits", false},
                 {"router_aux_loss_coef", 0.001}});
  return fields;
}

inline nlohmann::json mixtral_json() {
  return {{"model_type", "mixtral"},      {"vocab_size", 96},          {"hidden_size", 48},
          {"intermediate_size", 40},      {"num_hidden_layers", 2},    {"num_attention_heads", 6},
          {"num_key_value_heads", 2},     {"hidden_act", "silu"},      {"max_position_embeddings", 64},
          {"num_local_experts", 4},       {"num_experts_per_tok", 2},  {"output_router_logits", false},
          {"router_aux_loss_coef", 0.02}, {"sliding_window", nullptr}, {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", false}, {"attention_dropout", 0.0}};
}

inline nlohmann::json gpt_oss_json() {
  return {{"model_type", "gpt_oss"},
          {"vocab_size", 96},
          {"hidden_size", 32},
          {"intermediate_size", 24},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"num_local_experts", 4},
          {"num_experts_per_tok", 2},
          {"experts_per_token", 2},
          {"attention_bias", true},
          {"initial_context_length", 4096},
          {"max_position_embeddings", 131072},
          {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
          {"sliding_window", 8},
          {"swiglu_limit", 7.0},
          {"rope_theta", 150000},
          {"rope_scaling",
           {{"rope_type", "yarn"},
            {"factor", 32.0},
            {"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"truncate", false},
            {"original_max_position_embeddings", 4096}}}};
}

inline nlohmann::json mamba2_json() {
  return {{"model_type", "mamba2"},   {"vocab_size", 96},    {"hidden_size", 32},
          {"num_hidden_layers", 2},   {"num_heads", 8},      {"head_dim", 8},
          {"state_size", 16},         {"n_groups", 2},       {"expand", 2},
          {"conv_kernel", 4},         {"chunk_size", 16},    {"use_bias", true},
          {"use_conv_bias", true},    {"rms_norm", true},    {"hidden_act", "silu"},
          {"norm_before_gate", true}, {"time_step_rank", 2}, {"time_step_min", 0.001},
          {"residual_in_fp32", true}};
}

inline nlohmann::json nemotron_h_json() {
  return {{"model_type", "nemotron_h"},
          {"vocab_size", 96},
          {"hidden_size", 32},
          {"num_hidden_layers", 4},
          {"hybrid_override_pattern", "M*-E"},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 1},
          {"head_dim", 8},
          {"intermediate_size", 40},
          {"mlp_hidden_act", "relu2"},
          {"ssm_state_size", 8},
          {"mamba_num_heads", 4},
          {"mamba_head_dim", 16},
          {"n_groups", 4},
          {"conv_kernel", 3},
          {"chunk_size", 8},
          {"use_bias", false},
          {"use_conv_bias", true},
          {"time_step_limit", {0.0, "Infinity"}},
          {"n_routed_experts", 8},
          {"num_experts_per_tok", 3},
          {"moe_intermediate_size", 20},
          {"moe_shared_expert_intermediate_size", 28},
          {"n_shared_experts", 1},
          {"n_group", 4},
          {"topk_group", 2},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"max_position_embeddings", 32},
          {"rescale_prenorm_residual", true},
          {"sliding_window", nullptr}};
}
