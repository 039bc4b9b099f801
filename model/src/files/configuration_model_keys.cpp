// SPDX-License-Identifier: Apache-2.0
#include "configuration_keys.hpp"

#include <array>

namespace encore::model {
namespace {

using Model = ModelConfiguration;
constexpr auto model = &Configuration::model;

constexpr Subject attention = {"layers of attention", has_attention};
constexpr Subject rotation = {"attention with rotary positions", [](const Model& of) {
                                return has_attention(of) && (of.position == Position::rope_half_split ||
                                                             of.position == Position::rope_interleaved);
                              }};
constexpr Subject extension = {"rotary frequencies for longer sequences: model.rope_factor above 1",
                               [](const Model& of) { return rotation.concerns(of) && of.rope_factor > 1; }};
constexpr Subject window = {"windowed attention: the letter ~ in model.pattern",
                            [](const Model& of) { return has_block(of, Block::windowed_attention); }};
constexpr Subject mlp = {"layers of an MLP", [](const Model& of) { return has_block(of, Block::mlp); }};
constexpr Subject experts = {"layers of experts",
                             [](const Model& of) { return has_block(of, Block::experts); }};
constexpr Subject feed_forward = {"layers of an MLP or of experts",
                                  [](const Model& of) { return mlp.concerns(of) || experts.concerns(of); }};
constexpr Subject clamp = {"model.activation = swiglu_clamped", [](const Model& of) {
                             return feed_forward.concerns(of) && of.activation == Activation::swiglu_clamped;
                           }};
constexpr Subject renormalization = {
    "layers of experts with another model.router_score than softmax_of_largest", [](const Model& of) {
      return experts.concerns(of) && of.router_score != RouterScore::softmax_of_largest;
    }};
constexpr Subject sparse_families = {"the families qwen3_moe, mixtral, gpt_oss and nemotron_h",
                                     [](const Model& of) {
                                       return of.family == "qwen3_moe" || of.family == "mixtral" ||
                                              of.family == "gpt_oss" || of.family == "nemotron_h";
                                     }};
constexpr Subject mamba = {"Mamba layers", [](const Model& of) { return has_block(of, Block::mamba); }};

constexpr std::array<std::string_view, 5> letters = {"M", "*", "~", "-", "E"};

Key family_key() {
  return plain<model, &Model::family>(
      {.name = "model.family",
       .kind = KeyKind::choice,
       .options = families,
       .fallback = "required",
       .help = "decides tensor names and the defaults of the other model keys"});
}

Key pattern_key() {
  return plain<model, &Model::pattern>(
      {.name = "model.pattern",
       .kind = KeyKind::letters,
       .range = {.maximum = 20'000},
       .options = letters,
       .fallback = "*- or, with experts, *E; mamba2: M; nemotron_h: M-*- or, with experts, ME*-",
       .help =
           "blocks of the layers one after the other, a stretch that repeats: M (Mamba), * (attention), ~ "
           "(attention in a window), - (MLP), E (experts); a layer has one in the families mamba2 and "
           "nemotron_h, elsewhere attention and then - or E"});
}

std::vector<Key> shape_keys() {
  return {
      family_key(),
      whole<model, &Model::layers>("model.layers", from(1, 10'000), "required", "layers"),
      pattern_key(),
      whole<model, &Model::hidden>("model.hidden", from(1, 1 << 20), "required",
                                   "width of the residual stream"),
      about(attention, whole<model, &Model::heads>("model.heads", from(1, 1 << 16), "required with attention",
                                                   "query heads")),
      about(attention, whole<model, &Model::kv_heads>("model.kv_heads", from(1, 1 << 16), "model.heads",
                                                      "key and value heads")),
      about(attention, whole<model, &Model::head_dim>("model.head_dim", from(1, 1 << 14),
                                                      "model.hidden / model.heads", "width of a head")),
      about(mlp, whole<model, &Model::ffn>("model.ffn", from(1, 1 << 24),
                                           "4 * hidden; with a gate 8 / 3 * hidden, up to a multiple of 64",
                                           "inner width of the MLP")),
      whole<model, &Model::vocab>("model.vocab", from(1, 2'147'483'647), "required",
                                  "tokens in the vocabulary"),
      whole<model, &Model::seq>("model.seq", from(1, 1 << 24), "required", "most positions of a sequence"),
      named<model, &Model::normalization>("model.normalization", "rms_norm; in gpt2 layer_norm",
                                          "normalization before every block and the head"),
      about(feed_forward, named<model, &Model::activation>(
                              "model.activation",
                              "swiglu; in gpt2 gelu_tanh, gpt_oss swiglu_clamped, nemotron_h relu_squared",
                              "activation of MLP and experts")),
      named<model, &Model::position>("model.position",
                                     "rope_half_split; in gpt2 learned, mamba2 and nemotron_h none",
                                     "how positions enter")};
}

std::vector<Key> detail_keys() {
  return {
      about(attention, truth<model, &Model::qkv_bias>("model.qkv_bias", "false; in gpt2 and gpt_oss true",
                                                      "biases of the query, key and value projections")),
      about(attention, truth<model, &Model::attention_output_bias>(
                           "model.attention_output_bias", "false; in gpt2 and gpt_oss true",
                           "bias of the attention's output projection")),
      about(feed_forward, truth<model, &Model::mlp_bias>("model.mlp_bias", "false; in gpt2 and gpt_oss true",
                                                         "biases of MLP and experts")),
      truth<model, &Model::tie_embeddings>("model.tie_embeddings", "false; in gpt2 true",
                                           "whether the head uses the embedding's weights"),
      real<model, &Model::norm_epsilon>("model.norm_epsilon", above(0, 1), "1e-05", "added to the variance"),
      real<model, &Model::dropout>("model.dropout", below(0, 1), "0",
                                   "dropout after the embedding and on the residual branches"),
      about(attention, real<model, &Model::attention_dropout>("model.attention_dropout", below(0, 1), "0",
                                                              "dropout of attention weights")),
      real<model, &Model::initializer_range>("model.initializer_range", from(0, 10), "0.02",
                                             "standard deviation of new weights"),
      about(window, whole<model, &Model::sliding_window>(
                        "model.sliding_window", from(1, 1 << 24), "required with ~ in model.pattern",
                        "positions that windowed attention sees, its own among them")),
      about(attention, truth<model, &Model::query_key_norm>(
                           "model.query_key_norm", "false; in qwen3 and qwen3_moe true",
                           "RMS norm of each head's query and key before the rotation")),
      about(attention, truth<model, &Model::attention_sinks>(
                           "model.attention_sinks", "false; in gpt_oss true",
                           "a learned logit a head that takes part in the softmax alone")),
      about(clamp, real<model, &Model::swiglu_limit>("model.swiglu_limit", above(0, 1e6), "7",
                                                     "bound of gate and up projection"))};
}

std::vector<Key> rotation_keys() {
  return {
      about(rotation, real<model, &Model::rope_theta>("model.rope_theta", from(1, 1e12), "10000",
                                                      "base of the rotary frequencies")),
      about(rotation,
            real<model, &Model::rope_factor>("model.rope_factor", from(1, 1e6), "1",
                                             "how many times longer sequences may be than "
                                             "model.rope_original_seq (YaRN); 1: plain frequencies")),
      about(extension, whole<model, &Model::rope_original_seq>("model.rope_original_seq", from(1, 1 << 24),
                                                               "model.seq / model.rope_factor",
                                                               "positions before the extension")),
      about(extension, real<model, &Model::rope_beta_fast>("model.rope_beta_fast", above(0, 1e6), "32",
                                                           "turns above which a frequency stays as it is")),
      about(extension, real<model, &Model::rope_beta_slow>("model.rope_beta_slow", above(0, 1e6), "1",
                                                           "turns below which a frequency is divided")),
      about(extension,
            real<model, &Model::rope_attention_factor>("model.rope_attention_factor", from(0, 1e6), "0",
                                                       "scales cosine and sine; 0: 0.1 * ln(factor) + 1")),
      about(extension,
            truth<model, &Model::rope_truncate>("model.rope_truncate", "true",
                                                "whether the ramp between both ends on whole dimensions"))};
}

std::vector<Key> expert_keys() {
  return {
      about(sparse_families, whole<model, &Model::experts>("model.experts", from(0, 4096), "0",
                                                           "experts of a layer; 0: none")),
      about(experts, whole<model, &Model::topk>("model.topk", from(1, 64), "2; at most model.experts",
                                                "experts that a token goes through")),
      about(experts, whole<model, &Model::expert_ffn>("model.expert_ffn", from(1, 1 << 24), "as model.ffn",
                                                      "inner width of an expert")),
      about(experts, whole<model, &Model::shared_ffn>(
                         "model.shared_ffn", from(0, 1 << 24), "0",
                         "inner width of the expert that every token goes through; 0: none")),
      about(experts,
            named<model, &Model::router_score>(
                "model.router_score", "softmax; in gpt_oss softmax_of_largest, nemotron_h sigmoid",
                "how the router's logits become weights; softmax: over all experts, before the choice")),
      about(renormalization, truth<model, &Model::router_renormalize>(
                                 "model.router_renormalize", "true",
                                 "whether the weights of the chosen experts are divided by their sum")),
      about(experts, truth<model, &Model::router_bias>("model.router_bias", "false; in gpt_oss true",
                                                       "bias of the router's projection")),
      about(experts, truth<model, &Model::expert_bias>(
                         "model.expert_bias", "false; in nemotron_h true",
                         "a bias for the choice alone, which training moves towards an even load")),
      about(experts, whole<model, &Model::router_groups>("model.router_groups", from(1, 4096), "1",
                                                         "groups of experts")),
      about(experts, whole<model, &Model::router_topk_groups>("model.router_topk_groups", from(1, 4096), "1",
                                                              "groups of which a token's experts are taken")),
      about(experts, real<model, &Model::router_scale>("model.router_scale", above(0, 1e6), "1",
                                                       "of the chosen experts' weights"))};
}

std::vector<Key> mamba_keys() {
  return {about(mamba, whole<model, &Model::mamba_heads>("model.mamba_heads", from(1, 1 << 16),
                                                         "2 * model.hidden / model.mamba_head_dim", "heads")),
          about(mamba, whole<model, &Model::mamba_head_dim>("model.mamba_head_dim", from(1, 1 << 14),
                                                            "64 with Mamba layers", "width of a head")),
          about(mamba, whole<model, &Model::mamba_state>("model.mamba_state", from(1, 1 << 14),
                                                         "128 with Mamba layers", "width of a head's state")),
          about(mamba, whole<model, &Model::mamba_groups>("model.mamba_groups", from(1, 1 << 16), "1",
                                                          "groups of heads with the same B and C")),
          about(mamba, whole<model, &Model::mamba_convolution>("model.mamba_convolution", from(2, 8), "4",
                                                               "positions that the convolution sees")),
          about(mamba, whole<model, &Model::mamba_chunk>("model.mamba_chunk", from(1, 1 << 16), "256",
                                                         "positions that are computed together")),
          about(mamba, whole<model, &Model::mamba_norm_groups>(
                           "model.mamba_norm_groups", from(1, 1 << 16), "model.mamba_groups",
                           "groups of channels that are normalized together before the projection out")),
          about(mamba, truth<model, &Model::mamba_bias>("model.mamba_bias", "false",
                                                        "biases of the projections in and out")),
          about(mamba, truth<model, &Model::mamba_convolution_bias>("model.mamba_convolution_bias", "true",
                                                                    "bias of the convolution")),
          about(mamba, real<model, &Model::mamba_step_minimum>("model.mamba_step_minimum", from(0, 1e6), "0",
                                                               "least time step")),
          about(mamba, real<model, &Model::mamba_step_maximum>("model.mamba_step_maximum", from(0, 1e6), "0",
                                                               "largest time step; 0: any"))};
}

}  // namespace

std::vector<Key> model_keys() {
  std::vector<Key> keys;
  for (const std::vector<Key>& section :
       {shape_keys(), detail_keys(), rotation_keys(), expert_keys(), mamba_keys()})
    std::ranges::copy(section, std::back_inserter(keys));
  return keys;
}

}  // namespace encore::model
