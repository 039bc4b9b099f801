// SPDX-License-Identifier: Apache-2.0
#include "configuration_table.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/nearest_name.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <type_traits>

#include "configuration_names.hpp"
#include "text.hpp"

namespace encore::model {
namespace {

/// The member that a chain of member pointers leads to.
template <auto... Path>
decltype(auto) member(auto& configuration) {
  return (configuration.*....*Path);
}

template <auto... Path>
using Member = std::remove_cvref_t<decltype(member<Path...>(std::declval<Configuration&>()))>;

/// Reads and writes a member whose type is the value's own.
template <auto... Path>
Key plain(Key key) {
  using Type = Member<Path...>;
  key.assign = [](Configuration& configuration, const Value& value) {
    member<Path...>(configuration) = std::get<Type>(value);
  };
  key.read = [](const Configuration& configuration) { return Value(member<Path...>(configuration)); };
  return key;
}

template <auto... Path>
Key choice(Key key) {
  using Type = Member<Path...>;
  key.kind = KeyKind::choice;
  key.options = names_of<Type>;
  key.assign = [](Configuration& configuration, const Value& value) {
    member<Path...>(configuration) = value_of<Type>(std::get<std::string>(value)).value();
  };
  key.read = [](const Configuration& configuration) {
    return Value(std::string(name_of(member<Path...>(configuration))));
  };
  return key;
}

template <auto... Path>
Key truth(std::string_view name, std::string_view fallback, std::string_view help) {
  return plain<Path...>({.name = name, .kind = KeyKind::truth, .fallback = fallback, .help = help});
}

template <auto... Path>
Key whole(std::string_view name, Range range, std::string_view fallback, std::string_view help) {
  return plain<Path...>(
      {.name = name, .kind = KeyKind::whole, .range = range, .fallback = fallback, .help = help});
}

template <auto... Path>
Key real(std::string_view name, Range range, std::string_view fallback, std::string_view help) {
  return plain<Path...>(
      {.name = name, .kind = KeyKind::real, .range = range, .fallback = fallback, .help = help});
}

/// A number of ranks of which this version has one.
template <auto... Path>
Key one_rank(std::string_view name, std::string_view help) {
  return plain<Path...>({.name = name,
                         .kind = KeyKind::whole,
                         .range = {.minimum = 1, .maximum = 1},
                         .fallback = "1",
                         .help = help,
                         .refusal = GraphRule::several_devices});
}

template <auto... Path>
Key named(std::string_view name, std::string_view fallback, std::string_view help) {
  return choice<Path...>({.name = name, .fallback = fallback, .help = help});
}

Key family_key() {
  return plain<&Configuration::model, &ModelConfiguration::family>(
      {.name = "model.family",
       .kind = KeyKind::choice,
       .options = families,
       .options_to_come = families_to_come,
       .fallback = "required",
       .help = "decides tensor names and the defaults of the other model keys"});
}

/// A list of an enumeration's values, kept in the enumeration's order.
template <auto... Path>
Key list(Key key) {
  using Type = typename Member<Path...>::value_type;
  key.kind = KeyKind::choices;
  if (key.options.empty()) key.options = names_of<Type>;
  key.assign = [](Configuration& configuration, const Value& value) {
    auto& values = member<Path...>(configuration);
    values.clear();
    for (const std::string& name : std::get<std::vector<std::string>>(value))
      values.push_back(value_of<Type>(name).value());
    std::ranges::sort(values);
  };
  key.read = [](const Configuration& configuration) {
    std::vector<std::string> names;
    for (const Type value : member<Path...>(configuration)) names.emplace_back(name_of(value));
    return Value(std::move(names));
  };
  return key;
}

Key graph_modules_key() {
  return list<&Configuration::graph, &GraphConfiguration::modules>(
      {.name = "graph.modules",
       .fallback = "none: whole layers",
       .help = "parts of a layer that graph.impl = layer records; of these, models of this version have "
               "attn and mlp",
       .refusal = GraphRule::unknown_module,
       .repetition = GraphRule::repeated_module});
}

Key graph_buckets_key() {
  return {.name = "graph.buckets",
          .kind = KeyKind::wholes,
          .range = {.minimum = 1, .maximum = 1 << 24},
          .fallback = "none: each length is recorded as it comes",
          .help = "sequence lengths that are recorded; a shorter sequence is padded to the next of them",
          .assign =
              [](Configuration& configuration, const Value& value) {
                configuration.graph.buckets = std::get<std::vector<std::int64_t>>(value);
                std::ranges::sort(configuration.graph.buckets);
              },
          .read = [](const Configuration& configuration) { return Value(configuration.graph.buckets); }};
}

constexpr Range from(double minimum, double maximum) { return {.minimum = minimum, .maximum = maximum}; }
constexpr Range below(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum, .maximum_excluded = true};
}
constexpr Range above(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum, .minimum_excluded = true};
}

constexpr double most_steps = 1e12;

auto model_keys() {
  constexpr auto model = &Configuration::model;
  using Model = ModelConfiguration;
  return std::array{
      family_key(),
      whole<model, &Model::layers>("model.layers", from(1, 10'000), "required", "transformer layers"),
      whole<model, &Model::hidden>("model.hidden", from(1, 1 << 20), "required",
                                   "width of the residual stream"),
      whole<model, &Model::heads>("model.heads", from(1, 1 << 16), "required", "query heads"),
      whole<model, &Model::kv_heads>("model.kv_heads", from(1, 1 << 16), "model.heads",
                                     "key and value heads"),
      whole<model, &Model::head_dim>("model.head_dim", from(1, 1 << 14), "model.hidden / model.heads",
                                     "width of a head"),
      whole<model, &Model::ffn>("model.ffn", from(1, 1 << 24),
                                "gpt2: 4 * hidden; llama: 8 / 3 * hidden, up to a multiple of 64",
                                "inner width of the MLP"),
      whole<model, &Model::vocab>("model.vocab", from(1, 2'147'483'647), "required",
                                  "tokens in the vocabulary"),
      whole<model, &Model::seq>("model.seq", from(1, 1 << 24), "required", "most positions of a sequence"),
      named<model, &Model::normalization>("model.normalization", "gpt2: layer_norm; llama: rms_norm",
                                          "normalization before attention, MLP and head"),
      named<model, &Model::activation>("model.activation", "gpt2: gelu_tanh; llama: swiglu",
                                       "activation of the MLP"),
      named<model, &Model::position>("model.position", "gpt2: learned; llama: rope_half_split",
                                     "how positions enter"),
      truth<model, &Model::qkv_bias>("model.qkv_bias", "gpt2: true; llama: false",
                                     "biases of the query, key and value projections"),
      truth<model, &Model::attention_output_bias>("model.attention_output_bias", "gpt2: true; llama: false",
                                                  "bias of the attention's output projection"),
      truth<model, &Model::mlp_bias>("model.mlp_bias", "gpt2: true; llama: false", "biases of the MLP"),
      truth<model, &Model::tie_embeddings>("model.tie_embeddings", "gpt2: true; llama: false",
                                           "whether the head uses the embedding's weights"),
      real<model, &Model::norm_epsilon>("model.norm_epsilon", above(0, 1), "1e-05", "added to the variance"),
      real<model, &Model::rope_theta>("model.rope_theta", from(1, 1e12), "10000",
                                      "base of the rotary frequencies"),
      real<model, &Model::dropout>("model.dropout", below(0, 1), "0",
                                   "dropout after the embedding and on the residual branches"),
      real<model, &Model::attention_dropout>("model.attention_dropout", below(0, 1), "0",
                                             "dropout of attention weights"),
      real<model, &Model::initializer_range>("model.initializer_range", from(0, 10), "0.02",
                                             "standard deviation of new weights")};
}

auto train_keys() {
  constexpr auto train = &Configuration::train;
  using Train = TrainConfiguration;
  return std::array{
      whole<train, &Train::steps>("train.steps", from(1, most_steps), "100", "optimizer steps"),
      whole<train, &Train::microbatch>("train.microbatch", from(1, 1 << 20), "1",
                                       "sequences of a microbatch"),
      whole<train, &Train::microbatches>("train.microbatches", from(1, 1 << 20), "1",
                                         "microbatches that are accumulated into a step"),
      whole<train, &Train::seq>("train.seq", from(1, 1 << 24), "model.seq", "tokens of a training sequence"),
      real<train, &Train::lr>("train.lr", from(0, 100), "0.0003", "largest learning rate"),
      real<train, &Train::min_lr>("train.min_lr", from(0, 100), "train.lr",
                                  "learning rate after the cosine; equal to train.lr: constant"),
      whole<train, &Train::lr_warmup_steps>("train.lr_warmup_steps", from(0, most_steps), "0",
                                            "steps in which the learning rate rises"),
      whole<train, &Train::lr_decay_steps>("train.lr_decay_steps", from(0, most_steps), "0",
                                           "step at which train.min_lr is reached; 0: train.steps"),
      real<train, &Train::weight_decay>("train.weight_decay", from(0, 100), "0.1",
                                        "decoupled weight decay of AdamW"),
      truth<train, &Train::decay_all>("train.decay_all", "false",
                                      "weight decay on biases and normalization weights too"),
      real<train, &Train::beta1>("train.beta1", below(0, 1), "0.9", "decay of AdamW's first moment"),
      real<train, &Train::beta2>("train.beta2", below(0, 1), "0.95", "decay of AdamW's second moment"),
      real<train, &Train::epsilon>("train.epsilon", above(0, 1), "1e-08", "added to AdamW's denominator"),
      real<train, &Train::clip>("train.clip", from(0, 1e30), "1",
                                "largest norm of the whole gradient; 0: any"),
      real<train, &Train::skip_above>(
          "train.skip_above", from(0, 1e30), "0",
          "norm of the gradient above which, or if it is not finite, a step updates "
          "nothing; 0: never"),
      named<train, &Train::precision>("train.precision", "fp32", "type of weights and activations"),
      named<train, &Train::gradient_type>("train.gradient_type", "train.precision", "type of gradients"),
      named<train, &Train::optimizer_state>("train.optimizer_state", "fp32", "type of AdamW's moments"),
      truth<train, &Train::master_weights>("train.master_weights", "true with train.precision = bf16",
                                           "whether the optimizer keeps fp32 weights"),
      whole<train, &Train::checkpoint_interval>("train.checkpoint_interval", from(0, most_steps), "0",
                                                "steps between checkpoints; 0: only after the last"),
      list<train, &Train::recompute>(
          {.name = "train.recompute",
           .fallback = "none: everything is kept",
           .help = "what backward computes again instead of keeping it; full: whole layers",
           .refusal = GraphRule::unknown_recompute_module}),
      truth<train, &Train::delay_wgrad>("train.delay_wgrad", "false",
                                        "weight gradients of attn and mlp after all input gradients")};
}

auto other_keys() {
  constexpr auto graph = &Configuration::graph;
  using Graph = GraphConfiguration;
  constexpr auto parallel = &Configuration::parallel;
  using Parallel = ParallelConfiguration;
  constexpr double most_bytes = 1LL << 60;
  return std::array{
      choice<graph, &Graph::impl>({.name = "graph.impl",
                                   .fallback = "full_iteration",
                                   .help = "what is recorded and replayed",
                                   .refusal = GraphRule::unknown_implementation}),
      graph_modules_key(),
      named<graph, &Graph::optimizer>("graph.optimizer", "joined, separate or eager as graph.impl allows",
                                      "where the optimizer is recorded"),
      whole<graph, &Graph::warmup_steps>("graph.warmup_steps", from(0, 1e6), "3",
                                         "steps that run eagerly before anything is recorded"),
      whole<graph, &Graph::validate_every>(
          "graph.validate_every", from(0, most_steps), "0",
          "every so many steps a replay is compared with an eager run; 0: never"),
      plain<graph, &Graph::memory_limit>(
          {.name = "graph.memory_limit",
           .kind = KeyKind::bytes,
           .range = from(0, most_bytes),
           .fallback = "0",
           .help = "most device memory, refused before capture if too little; 0: any"}),
      truth<graph, &Graph::recapture>(
          "graph.recapture", "false",
          "record anew, instead of an error, when a replay would not fit any more"),
      graph_buckets_key(),
      named<graph, &Graph::above_largest>("graph.above_largest", "eager",
                                          "what happens to a sequence longer than the largest bucket"),
      whole<graph, &Graph::recordings>("graph.recordings", from(1, 4096), "8",
                                       "most lengths that are recorded; others run eagerly"),
      truth<graph, &Graph::checksums>(
          "graph.checksums", "false",
          "keep checksums at the boundary of every segment, so that the first bad one of a step is known"),
      one_rank<parallel, &Parallel::data>("parallel.data", "data-parallel ranks"),
      one_rank<parallel, &Parallel::tensor>("parallel.tensor", "tensor-parallel ranks"),
      one_rank<parallel, &Parallel::expert>("parallel.expert", "expert-parallel ranks"),
      whole<parallel, &Parallel::pipeline>(
          "parallel.pipeline", from(1, 64), "1",
          "pipeline stages; in one process they run in turn, in the order of their schedule"),
      whole<parallel, &Parallel::virtual_stages>("parallel.virtual_stages", from(1, 64), "1",
                                                 "chunks of layers that a pipeline stage takes in turn"),
      named<&Configuration::backend>("backend", "openmp", "where kernels run"),
      whole<&Configuration::seed>("seed", from(0, 9007199254740992.0), "1",
                                  "of weights, dropout and the order of the data")};
}

}  // namespace

std::span<const Key> key_table() {
  static const std::vector<Key> table = [] {
    std::vector<Key> keys;
    const auto append = [&keys](const auto& section) {
      std::ranges::copy(section, std::back_inserter(keys));
    };
    append(model_keys());
    append(train_keys());
    append(other_keys());
    return keys;
  }();
  return table;
}

const Key* find_key(std::string_view name) {
  const auto table = key_table();
  const auto found = std::ranges::find(table, name, &Key::name);
  return found == table.end() ? nullptr : &*found;
}

void throw_unknown_key(std::string_view name, std::string_view source) {
  constexpr std::array<std::string_view, 3> to_come = {"model.experts", "model.topk", "model.expert_ffn"};
  if (std::ranges::find(to_come, name) != to_come.end())
    throw ConfigurationError(
        fmt::format("{} ({}) is not supported in this version: it has no mixture of experts", name, source));
  std::vector<std::string_view> names;
  for (const Key& key : key_table()) names.push_back(key.name);
  throw ConfigurationError(
      fmt::format("unknown configuration key {} ({}){}", in_quotes(name), source, did_you_mean(name, names)));
}

}  // namespace encore::model
