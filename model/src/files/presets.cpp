// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/presets.hpp>

#include <encore/backend/error.hpp>
#include <encore/model/files/nearest_name.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "text.hpp"

namespace encore::model {
namespace {

// The main job: learns the shipped text, byte by byte, in minutes on two cores.
constexpr std::array bytes = {
    PresetSetting{"model.family", "llama"},  PresetSetting{"model.layers", "4"},
    PresetSetting{"model.hidden", "128"},    PresetSetting{"model.heads", "4"},
    PresetSetting{"model.ffn", "384"},       PresetSetting{"model.vocab", "256"},
    PresetSetting{"model.seq", "128"},       PresetSetting{"train.steps", "1500"},
    PresetSetting{"train.microbatch", "4"},  PresetSetting{"train.lr", "0.002"},
    PresetSetting{"train.min_lr", "0.0002"}, PresetSetting{"train.lr_warmup_steps", "20"}};

/// The workloads of the PyTorch peer: bf16 weights, gradients and moments, AdamW with PyTorch's own defaults
/// on every parameter, constant rate, no clipping; the sequence is the whole context.
constexpr auto peer(std::string_view layers, std::string_view hidden, std::string_view heads,
                    std::string_view ffn, std::string_view vocab, std::string_view seq,
                    std::string_view microbatch) {
  return std::array{PresetSetting{"model.family", "llama"},
                    PresetSetting{"model.layers", layers},
                    PresetSetting{"model.hidden", hidden},
                    PresetSetting{"model.heads", heads},
                    PresetSetting{"model.ffn", ffn},
                    PresetSetting{"model.vocab", vocab},
                    PresetSetting{"model.seq", seq},
                    PresetSetting{"train.microbatch", microbatch},
                    PresetSetting{"train.lr", "0.0001"},
                    PresetSetting{"train.weight_decay", "0.01"},
                    PresetSetting{"train.decay_all", "true"},
                    PresetSetting{"train.beta2", "0.999"},
                    PresetSetting{"train.clip", "0"},
                    PresetSetting{"train.precision", "bf16"},
                    PresetSetting{"train.optimizer_state", "bf16"},
                    PresetSetting{"train.master_weights", "false"}};
}
constexpr auto tiny_launch = peer("24", "256", "4", "1024", "1024", "128", "1");
constexpr auto gpt2_124m_b1 = peer("12", "768", "12", "3072", "50304", "1024", "1");
constexpr auto gpt2_124m = peer("12", "768", "12", "3072", "50304", "1024", "8");
constexpr auto gpt_1b = peer("16", "2048", "16", "8192", "50304", "2048", "2");

/// The peer's workloads of experts: no norm of queries and keys, and no loss for the router.
constexpr auto peer_experts(std::string_view layers, std::string_view hidden, std::string_view heads,
                            std::string_view kv_heads, std::string_view vocab, std::string_view seq,
                            std::string_view experts, std::string_view topk, std::string_view expert_ffn) {
  return std::array{PresetSetting{"model.family", "qwen3_moe"},
                    PresetSetting{"model.layers", layers},
                    PresetSetting{"model.hidden", hidden},
                    PresetSetting{"model.heads", heads},
                    PresetSetting{"model.kv_heads", kv_heads},
                    PresetSetting{"model.head_dim", "64"},
                    PresetSetting{"model.query_key_norm", "false"},
                    PresetSetting{"model.vocab", vocab},
                    PresetSetting{"model.seq", seq},
                    PresetSetting{"model.experts", experts},
                    PresetSetting{"model.topk", topk},
                    PresetSetting{"model.expert_ffn", expert_ffn},
                    PresetSetting{"train.lr", "0.0001"},
                    PresetSetting{"train.weight_decay", "0.01"},
                    PresetSetting{"train.decay_all", "true"},
                    PresetSetting{"train.beta2", "0.999"},
                    PresetSetting{"train.clip", "0"},
                    PresetSetting{"train.precision", "bf16"},
                    PresetSetting{"train.optimizer_state", "bf16"},
                    PresetSetting{"train.master_weights", "false"}};
}
constexpr auto moe_small = peer_experts("8", "512", "8", "8", "8192", "512", "16", "2", "1024");
constexpr auto moe_qwen3 = peer_experts("4", "2048", "32", "4", "32000", "4096", "128", "8", "768");

// Every kind of block, small enough for two cores.
constexpr std::array hybrid = {PresetSetting{"model.family", "nemotron_h"},
                               PresetSetting{"model.pattern", "M*M-E"},
                               PresetSetting{"model.layers", "5"},
                               PresetSetting{"model.hidden", "128"},
                               PresetSetting{"model.heads", "4"},
                               PresetSetting{"model.kv_heads", "2"},
                               PresetSetting{"model.ffn", "384"},
                               PresetSetting{"model.experts", "8"},
                               PresetSetting{"model.topk", "2"},
                               PresetSetting{"model.expert_ffn", "128"},
                               PresetSetting{"model.shared_ffn", "128"},
                               PresetSetting{"model.mamba_heads", "8"},
                               PresetSetting{"model.mamba_head_dim", "32"},
                               PresetSetting{"model.mamba_state", "32"},
                               PresetSetting{"model.mamba_groups", "2"},
                               PresetSetting{"model.mamba_chunk", "32"},
                               PresetSetting{"model.vocab", "256"},
                               PresetSetting{"model.seq", "128"},
                               PresetSetting{"train.steps", "1500"},
                               PresetSetting{"train.microbatch", "4"},
                               PresetSetting{"train.lr", "0.002"},
                               PresetSetting{"train.min_lr", "0.0002"},
                               PresetSetting{"train.lr_warmup_steps", "20"}};

/// Public GPT-2 checkpoints.
constexpr auto gpt2_shape(std::string_view layers, std::string_view hidden, std::string_view heads) {
  return std::array{PresetSetting{"model.family", "gpt2"},   PresetSetting{"model.layers", layers},
                    PresetSetting{"model.hidden", hidden},   PresetSetting{"model.heads", heads},
                    PresetSetting{"model.vocab", "50257"},   PresetSetting{"model.seq", "1024"},
                    PresetSetting{"model.dropout", "0.1"},   PresetSetting{"model.attention_dropout", "0.1"},
                    PresetSetting{"train.precision", "bf16"}};
}
constexpr auto gpt2 = gpt2_shape("12", "768", "12");
constexpr auto gpt2_medium = gpt2_shape("24", "1024", "16");
constexpr auto gpt2_large = gpt2_shape("36", "1280", "20");
constexpr auto gpt2_xl = gpt2_shape("48", "1600", "25");

/// Public checkpoints of the Llama type.
constexpr auto llama_shape(std::string_view layers, std::string_view hidden, std::string_view heads,
                           std::string_view kv_heads, std::string_view ffn, std::string_view vocab,
                           std::string_view seq, std::string_view rope_theta,
                           std::string_view tie_embeddings) {
  return std::array{
      PresetSetting{"model.family", "llama"},        PresetSetting{"model.layers", layers},
      PresetSetting{"model.hidden", hidden},         PresetSetting{"model.heads", heads},
      PresetSetting{"model.kv_heads", kv_heads},     PresetSetting{"model.ffn", ffn},
      PresetSetting{"model.vocab", vocab},           PresetSetting{"model.seq", seq},
      PresetSetting{"model.rope_theta", rope_theta}, PresetSetting{"model.tie_embeddings", tie_embeddings},
      PresetSetting{"train.precision", "bf16"}};
}
constexpr auto tinyllama_1b = llama_shape("22", "2048", "32", "4", "5632", "32000", "2048", "10000", "false");
constexpr auto llama_3_2_1b =
    llama_shape("16", "2048", "32", "8", "8192", "128256", "8192", "500000", "true");
constexpr auto llama_3_2_3b =
    llama_shape("28", "3072", "24", "8", "8192", "128256", "8192", "500000", "true");
constexpr auto llama_3_8b =
    llama_shape("32", "4096", "32", "8", "14336", "128256", "8192", "500000", "false");

/// Qwen3 30B A3B with so many layers and tokens.
constexpr auto qwen3_30b(std::string_view layers, std::string_view vocab) {
  return std::array{PresetSetting{"model.family", "qwen3_moe"},  PresetSetting{"model.layers", layers},
                    PresetSetting{"model.hidden", "2048"},       PresetSetting{"model.heads", "32"},
                    PresetSetting{"model.kv_heads", "4"},        PresetSetting{"model.head_dim", "128"},
                    PresetSetting{"model.experts", "128"},       PresetSetting{"model.topk", "8"},
                    PresetSetting{"model.expert_ffn", "768"},    PresetSetting{"model.vocab", vocab},
                    PresetSetting{"model.seq", "40960"},         PresetSetting{"model.rope_theta", "1000000"},
                    PresetSetting{"model.norm_epsilon", "1e-6"}, PresetSetting{"train.seq", "4096"},
                    PresetSetting{"train.precision", "bf16"}};
}
constexpr auto qwen3_30b_a3b = qwen3_30b("48", "151936");
constexpr auto qwen3_30b_a3b_small = qwen3_30b("2", "32768");

/// GPT-OSS: windowed and full attention in turn.
constexpr auto gpt_oss(std::string_view layers, std::string_view experts, std::string_view vocab,
                       std::string_view optimizer_state, std::string_view master_weights) {
  return std::array{PresetSetting{"model.family", "gpt_oss"},
                    PresetSetting{"model.pattern", "~E*E"},
                    PresetSetting{"model.sliding_window", "128"},
                    PresetSetting{"model.layers", layers},
                    PresetSetting{"model.hidden", "2880"},
                    PresetSetting{"model.heads", "64"},
                    PresetSetting{"model.kv_heads", "8"},
                    PresetSetting{"model.head_dim", "64"},
                    PresetSetting{"model.experts", experts},
                    PresetSetting{"model.topk", "4"},
                    PresetSetting{"model.expert_ffn", "2880"},
                    PresetSetting{"model.vocab", vocab},
                    PresetSetting{"model.seq", "131072"},
                    PresetSetting{"model.rope_theta", "150000"},
                    PresetSetting{"model.rope_factor", "32"},
                    PresetSetting{"model.rope_original_seq", "4096"},
                    PresetSetting{"model.rope_truncate", "false"},
                    PresetSetting{"train.seq", "4096"},
                    PresetSetting{"train.precision", "bf16"},
                    PresetSetting{"train.optimizer_state", optimizer_state},
                    PresetSetting{"train.master_weights", master_weights}};
}
constexpr auto gpt_oss_20b = gpt_oss("24", "32", "201088", "fp32", "true");
constexpr auto gpt_oss_20b_small = gpt_oss("2", "32", "32768", "fp32", "true");
constexpr auto gpt_oss_120b = gpt_oss("36", "128", "201088", "fp32", "true");
// Six billion parameters: their moments fit one device in bf16.
constexpr auto gpt_oss_120b_small = gpt_oss("2", "128", "32768", "bf16", "false");

/// The shapes of Nemotron-H 8B.
constexpr auto nemotron_h(std::string_view layers, std::string_view pattern, std::string_view vocab) {
  return std::array{PresetSetting{"model.family", "nemotron_h"}, PresetSetting{"model.layers", layers},
                    PresetSetting{"model.pattern", pattern},     PresetSetting{"model.hidden", "4096"},
                    PresetSetting{"model.heads", "32"},          PresetSetting{"model.kv_heads", "8"},
                    PresetSetting{"model.head_dim", "128"},      PresetSetting{"model.ffn", "21504"},
                    PresetSetting{"model.mamba_heads", "128"},   PresetSetting{"model.mamba_head_dim", "64"},
                    PresetSetting{"model.mamba_state", "128"},   PresetSetting{"model.mamba_groups", "8"},
                    PresetSetting{"model.mamba_chunk", "128"},   PresetSetting{"model.vocab", vocab},
                    PresetSetting{"model.seq", "8192"},          PresetSetting{"train.seq", "4096"},
                    PresetSetting{"train.precision", "bf16"}};
}
constexpr auto nemotron_h_like =
    nemotron_h("52", "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "131072");
constexpr auto nemotron_h_like_small = nemotron_h("4", "M-*-", "32768");

/// The shapes of Nemotron 3 Nano 30B A3B.
constexpr auto nemotron_h_experts(std::string_view layers, std::string_view pattern, std::string_view vocab) {
  return std::array{PresetSetting{"model.family", "nemotron_h"},
                    PresetSetting{"model.layers", layers},
                    PresetSetting{"model.pattern", pattern},
                    PresetSetting{"model.hidden", "2688"},
                    PresetSetting{"model.heads", "32"},
                    PresetSetting{"model.kv_heads", "2"},
                    PresetSetting{"model.head_dim", "128"},
                    PresetSetting{"model.experts", "128"},
                    PresetSetting{"model.topk", "6"},
                    PresetSetting{"model.expert_ffn", "1856"},
                    PresetSetting{"model.shared_ffn", "3712"},
                    PresetSetting{"model.router_scale", "2.5"},
                    PresetSetting{"model.mamba_heads", "64"},
                    PresetSetting{"model.mamba_head_dim", "64"},
                    PresetSetting{"model.mamba_state", "128"},
                    PresetSetting{"model.mamba_groups", "8"},
                    PresetSetting{"model.mamba_chunk", "128"},
                    PresetSetting{"model.vocab", vocab},
                    PresetSetting{"model.seq", "8192"},
                    PresetSetting{"train.seq", "4096"},
                    PresetSetting{"train.precision", "bf16"}};
}
constexpr auto nemotron_h_moe_like =
    nemotron_h_experts("52", "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "131072");
constexpr auto nemotron_h_moe_like_small = nemotron_h_experts("4", "ME*E", "32768");

constexpr std::array table = {
    Preset{"bytes", "a small Llama-type model of the shipped text, by bytes: the main job on two cores",
           bytes},
    Preset{"hybrid", "Mamba, attention, MLP and experts in five small layers, of the shipped text by bytes",
           hybrid},
    Preset{"tiny-launch", "24 narrow layers, bf16: launches are all the time there is", tiny_launch},
    Preset{"gpt2-124m-b1", "12 layers of width 768, bf16, one sequence of 1024 tokens", gpt2_124m_b1},
    Preset{"gpt2-124m", "12 layers of width 768, bf16, eight sequences of 1024 tokens", gpt2_124m},
    Preset{"gpt-1b", "16 layers of width 2048, bf16, two sequences of 2048 tokens", gpt_1b},
    Preset{"moe-small", "8 layers of 16 experts of width 1024, bf16, one sequence of 512 tokens", moe_small},
    Preset{"moe-qwen3", "4 layers of 128 experts of width 768, bf16, one sequence of 4096 tokens", moe_qwen3},
    Preset{"gpt2", "the shape of the public GPT-2 with 124 million parameters", gpt2},
    Preset{"gpt2-medium", "the shape of the public GPT-2 with 355 million parameters", gpt2_medium},
    Preset{"gpt2-large", "the shape of the public GPT-2 with 774 million parameters", gpt2_large},
    Preset{"gpt2-xl", "the shape of the public GPT-2 with 1.6 billion parameters", gpt2_xl},
    Preset{"tinyllama-1.1b", "the shape of the public TinyLlama with 1.1 billion parameters", tinyllama_1b},
    Preset{"llama-3.2-1b",
           "the shape of Llama 3.2 1B with its first 8192 positions, rotary frequencies unscaled",
           llama_3_2_1b},
    Preset{"llama-3.2-3b",
           "the shape of Llama 3.2 3B with its first 8192 positions, rotary frequencies unscaled",
           llama_3_2_3b},
    Preset{"llama-3-8b", "the shape of Llama 3 8B", llama_3_8b},
    Preset{"qwen3-30b-a3b", "the shape of Qwen3 30B A3B: 128 experts, 8 a token", qwen3_30b_a3b},
    Preset{"qwen3-30b-a3b-small", "two layers of Qwen3 30B A3B", qwen3_30b_a3b_small},
    Preset{"gpt-oss-20b", "the shape of GPT-OSS 20B: 32 experts, 4 a token", gpt_oss_20b},
    Preset{"gpt-oss-20b-small", "two layers of GPT-OSS 20B", gpt_oss_20b_small},
    Preset{"gpt-oss-120b", "the shape of GPT-OSS 120B: 128 experts, 4 a token", gpt_oss_120b},
    Preset{"gpt-oss-120b-small", "two layers of GPT-OSS 120B", gpt_oss_120b_small},
    Preset{"nemotron-h-like", "the shape of Nemotron-H 8B: Mamba, MLP and some attention", nemotron_h_like},
    Preset{"nemotron-h-like-small", "four layers of Nemotron-H 8B", nemotron_h_like_small},
    Preset{"nemotron-h-moe-like",
           "the shape of Nemotron 3 Nano 30B A3B: Mamba, 128 experts and some attention",
           nemotron_h_moe_like},
    Preset{"nemotron-h-moe-like-small", "four layers of Nemotron 3 Nano 30B A3B", nemotron_h_moe_like_small},
};

}  // namespace

std::span<const Preset> presets() { return table; }

const Preset& preset(std::string_view name) {
  if (const auto found = std::ranges::find(table, name, &Preset::name); found != table.end()) return *found;
  std::array<std::string_view, table.size()> names;
  std::ranges::transform(table, names.begin(), &Preset::name);
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) hint = fmt::format("; there are {}", fmt::join(names, ", "));
  throw ConfigurationError(fmt::format("there is no preset {}{}", in_quotes(name), hint));
}

}  // namespace encore::model
