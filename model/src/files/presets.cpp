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

constexpr std::array table = {
    Preset{"bytes", "a small Llama-type model of the shipped text, by bytes: the main job on two cores",
           bytes},
    Preset{"tiny-launch", "24 narrow layers, bf16: launches are all the time there is", tiny_launch},
    Preset{"gpt2-124m-b1", "12 layers of width 768, bf16, one sequence of 1024 tokens", gpt2_124m_b1},
    Preset{"gpt2-124m", "12 layers of width 768, bf16, eight sequences of 1024 tokens", gpt2_124m},
    Preset{"gpt-1b", "16 layers of width 2048, bf16, two sequences of 2048 tokens", gpt_1b},
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
