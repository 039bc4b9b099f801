// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace encore::bench {

/// The shapes of a layer of a preset.
struct Workload {
  const char* name;
  bool small;  ///< enough for a host
  std::int64_t sequences, tokens_of_sequence, layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  std::int64_t experts = 0, topk = 0, expert_ffn = 0;

  std::int64_t tokens() const { return sequences * tokens_of_sequence; }
  std::int64_t projected() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t width() const { return heads * head_dim; }
  std::int64_t rows() const { return tokens() * topk; }  ///< of all experts
};

inline constexpr std::array workloads{
    Workload{"tiny-launch", true, 1, 128, 24, 256, 4, 4, 64, 1024, 1024},
    Workload{"gpt2-124m-b1", false, 1, 1024, 12, 768, 12, 12, 64, 3072, 50304},
    Workload{"gpt2-124m", false, 8, 1024, 12, 768, 12, 12, 64, 3072, 50304},
    Workload{"gpt-1b", false, 2, 2048, 16, 2048, 16, 16, 128, 8192, 50304},
    Workload{"moe-small", true, 1, 512, 8, 512, 8, 8, 64, 0, 8192, 16, 2, 1024},
    Workload{"moe-qwen3", false, 1, 4096, 4, 2048, 32, 4, 64, 0, 32000, 128, 8, 768}};

}  // namespace encore::bench
