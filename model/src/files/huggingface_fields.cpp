// SPDX-License-Identifier: Apache-2.0
#include "huggingface_fields.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text.hpp"

namespace encore::model {
namespace {

/// Fields about tokens, generation, other tasks, storage or the program that wrote the file: none of them
/// changes the logits of a causal language model or their gradient.
bool leaves_computation_alone(std::string_view field) {
  constexpr std::array names = {"transformers_version",
                                "architectures",
                                "_name_or_path",
                                "name_or_path",
                                "_attn_implementation",
                                "_commit_hash",
                                "bos_token_id",
                                "chunk_size_feed_forward",
                                "decoder_start_token_id",
                                "do_sample",
                                "dtype",
                                "eos_token_id",
                                "finetuning_task",
                                "gradient_checkpointing",
                                "id2label",
                                "label2id",
                                "max_length",
                                "min_length",
                                "n_ctx",
                                "output_attentions",
                                "output_hidden_states",
                                "pad_token_id",
                                "prefix",
                                "problem_type",
                                "return_dict",
                                "sep_token_id",
                                "summary_activation",
                                "summary_first_dropout",
                                "summary_proj_to_labels",
                                "summary_type",
                                "summary_use_proj",
                                "task_specific_params",
                                "tokenizer_class",
                                "torch_dtype",
                                "torchscript",
                                "use_cache"};
  return std::ranges::find(names, field) != names.end();
}

bool says_nothing(const nlohmann::json& value) {
  const bool empty = (value.is_string() || value.is_array() || value.is_object()) && std::size(value) == 0;
  return value.is_null() || empty || value == false;
}

}  // namespace

HuggingFaceFields::HuggingFaceFields(const nlohmann::json& fields, std::string source)
    : fields_(fields), source_(std::move(source)) {}

const nlohmann::json* HuggingFaceFields::take(std::string_view field) {
  taken_.emplace(field);
  const auto found = fields_.find(field);
  return found == fields_.end() || found->is_null() ? nullptr : &*found;
}

void HuggingFaceFields::use(std::string_view field, std::string_view key, Settings& settings) {
  const nlohmann::json* const value = take(field);
  if (value == nullptr) return;
  std::string source = fmt::format("{} of {}", field, source_);
  Value parsed = parse_value(*find_key(key), *value, source);
  settings.insert_or_assign(std::string(key),
                            Setting{std::move(parsed), Strength::checkpoint, std::move(source)});
}

void HuggingFaceFields::require(std::string_view field, std::string_view key, Settings& settings) {
  if (take(field) == nullptr) throw ConfigurationError(fmt::format("{} has no {}", source_, field));
  use(field, key, settings);
}

void HuggingFaceFields::expect(std::string_view field, const nlohmann::json& value) {
  const nlohmann::json* const found = take(field);
  if (found != nullptr && *found != value) refuse(field, fmt::format("only {}", value.dump()));
}

void HuggingFaceFields::refuse_rest() const {
  for (const auto& [field, value] : fields_.items())
    if (!taken_.contains(field) && !leaves_computation_alone(field) && !says_nothing(value))
      refuse(field, "and this version does not know the field: remove it if it leaves the computation alone");
}

void HuggingFaceFields::refuse(std::string_view field, std::string_view what_is_allowed) const {
  throw ConfigurationError(fmt::format("{} = {} of {} is not supported in this version, {}", in_quotes(field),
                                       printable(fields_.at(std::string(field)).dump()), source_,
                                       what_is_allowed));
}

}  // namespace encore::model
