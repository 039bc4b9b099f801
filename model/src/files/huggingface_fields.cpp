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
                                "auto_map",
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
                                "initial_context_length",
                                "label2id",
                                "max_length",
                                "mamba_ssm_cache_dtype",
                                "min_length",
                                "moe_shared_expert_overlap",
                                "mtp_hybrid_override_pattern",
                                "mtp_layers_block_type",
                                "n_ctx",
                                "num_logits_to_keep",
                                "output_attentions",
                                "output_hidden_states",
                                "output_router_logits",
                                "pad_token_id",
                                "prefix",
                                "problem_type",
                                "rescale_prenorm_residual",
                                "residual_in_fp32",
                                "return_dict",
                                "router_aux_loss_coef",
                                "sep_token_id",
                                "summary_activation",
                                "summary_first_dropout",
                                "summary_proj_to_labels",
                                "summary_type",
                                "summary_use_proj",
                                "task_specific_params",
                                "time_step_floor",
                                "time_step_max",
                                "time_step_rank",
                                "tokenizer_class",
                                "torch_dtype",
                                "torchscript",
                                "use_cache",
                                "use_mamba_kernels"};
  return std::ranges::find(names, field) != names.end();
}

bool says_nothing(const nlohmann::json& value) {
  const bool empty = (value.is_string() || value.is_array() || value.is_object()) && std::size(value) == 0;
  return value.is_null() || empty || value == false;
}

bool is_whole(const nlohmann::json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX});
}

}  // namespace

void set(Settings& settings, std::string_view key, Value value) {
  settings.insert_or_assign(std::string(key), Setting{std::move(value), Strength::checkpoint, {}});
}

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

void HuggingFaceFields::use_or(std::string_view field, std::string_view key, Value otherwise,
                               Settings& settings) {
  set(settings, key, std::move(otherwise));
  use(field, key, settings);
}

std::string HuggingFaceFields::text(std::string_view field, std::string otherwise) {
  const nlohmann::json* const value = take(field);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) refuse(field, "a name is expected");
  return value->get<std::string>();
}

bool HuggingFaceFields::truth(std::string_view field, bool otherwise) {
  const nlohmann::json* const value = take(field);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) refuse(field, "true or false is expected");
  return value->get<bool>();
}

std::int64_t HuggingFaceFields::whole(std::string_view field, std::int64_t otherwise) {
  const nlohmann::json* const value = take(field);
  if (value == nullptr) return otherwise;
  if (!is_whole(*value)) refuse(field, "a whole number is expected");
  return value->get<std::int64_t>();
}

std::vector<std::string> HuggingFaceFields::texts(std::string_view field) {
  const nlohmann::json* const value = take(field);
  if (value == nullptr) return {};
  const auto is_text = [](const nlohmann::json& item) { return item.is_string(); };
  if (!value->is_array() || !std::ranges::all_of(*value, is_text))
    refuse(field, "a list of names is expected");
  return value->get<std::vector<std::string>>();
}

std::vector<std::int64_t> HuggingFaceFields::wholes(std::string_view field) {
  const nlohmann::json* const value = take(field);
  if (value == nullptr) return {};
  if (!value->is_array() || !std::ranges::all_of(*value, is_whole))
    refuse(field, "a list of whole numbers is expected");
  return value->get<std::vector<std::int64_t>>();
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
