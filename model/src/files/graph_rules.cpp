// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/contract_rules.hpp>
#include <encore/model/files/graph_rules.hpp>

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace encore::model {
namespace {

using enum RuleOutcome;

constexpr std::array rules = {
    Rule{"G-01", refused, "`graph.impl` or `cuda_graph_impl` with an unknown name",
         "there is no such kind of recording",
         "use none, layer or full_iteration (Megatron's form: none, local, transformer_engine or "
         "full_iteration)",
         "C1"},
    Rule{"G-02", refused, "`graph.modules` with `graph.impl = full_iteration`",
         "parts of a layer can only be chosen where layers are recorded one by one",
         "set graph.impl = layer, or leave graph.modules out", "C2"},
    Rule{"G-03", refused, "`full` beside other names in `cuda_graph_scope` or `cuda_graph_modules`",
         "it already means whole layers", "keep full alone, or leave it out", "C3"},
    Rule{"G-04", refused, "`cuda_graph_scope = full_iteration` with `cuda_graph_impl = transformer_engine`",
         "transformer_engine records single layers", "set cuda_graph_impl = full_iteration without a scope",
         "C4"},
    Rule{"G-05", refused,
         "an inference scope: `inference_cuda_graph_scope = layer` or `block`, or `full_iteration_inference` "
         "among the modules",
         "a training records no generation; encore generate records its decode step by itself",
         "leave the inference scope out", "C5, C9"},
    Rule{"G-06", refused, "`full_iteration` beside other names in `cuda_graph_scope` or `cuda_graph_modules`",
         "the whole iteration contains every part of every layer",
         "keep full_iteration alone, or leave it out", "C6"},
    Rule{"G-07", refused, "one setting in two forms: two of Megatron's names, or one of Megatron's and ours",
         "they could contradict each other", "keep one of them", "C7"},
    Rule{"G-08", refused,
         "`enable_cuda_graph` or `external_cuda_graph` beside each other, `cuda_graph_impl` or `graph.impl`",
         "each of them decides alone what is recorded", "leave out all but one", "C8, G3"},
    Rule{"G-09", refused, "`cuda_graph_scope` or `cuda_graph_modules` without `cuda_graph_impl`",
         "Megatron would then record nothing, and this project's default is the whole iteration",
         "add cuda_graph_impl = transformer_engine", ""},
    Rule{"G-10", refused, "one module twice in `graph.modules`", "each part of a layer is recorded once",
         "name it once", ""},
    Rule{"G-11", refused, "an unknown name in `graph.modules`", "layers have no such part",
         "use some of attn, mlp, moe, moe_router, moe_preprocess and mamba", ""},
    Rule{"G-12", refused, "`moe` beside `moe_router`", "moe contains the router",
         "leave moe_router out of graph.modules, or moe", "C11"},
    Rule{"G-13", refused, "`moe_preprocess` without `moe_router`", "it begins at the router's output",
         "add moe_router to graph.modules, or leave moe_preprocess out", "C12"},
    Rule{"G-14", refused, "`moe`, `moe_router` or `moe_preprocess` for a model without experts",
         "there is nothing to record", "leave it out of graph.modules", "C13"},
    Rule{"G-15", refused, "`mamba` for a model without Mamba layers", "there is nothing to record",
         "leave mamba out of graph.modules", ""},
    Rule{"G-16", refused, "`graph.optimizer = joined` with another `graph.impl` than `full_iteration`",
         "only the graph of the whole iteration can contain the optimizer",
         "set graph.optimizer = separate or eager, or graph.impl = full_iteration", ""},
    Rule{"G-17", refused, "`graph.optimizer = separate` with `graph.impl = none`", "nothing is recorded",
         "set graph.optimizer = eager, or leave it out", ""},
    Rule{"G-18", refused,
         "`parallel.tensor`, `parallel.sequence` or `parallel.expert` for a model or batch that cannot be "
         "dealt "
         "out so",
         "every rank gets the same number of heads, experts, channels and tokens",
         "choose a number of ranks that divides it, or 1", ""},
    Rule{"G-19", noted, "`graph.modules` with `graph.impl = none`: the list is cleared",
         "nothing is recorded", "leave graph.modules out", "C73"},
    Rule{"G-20", noted,
         "a detail (`graph.modules`, `graph.optimizer`, a key about what the model does not have) that a "
         "stronger source makes meaningless is dropped",
         "a later kind of source wins over an earlier one", "leave the detail out", ""},
    Rule{"G-21", noted,
         "`enable_cuda_graph`, `external_cuda_graph`, or the scopes `full` and `full_iteration`: translated",
         "it is an older spelling", "write it in the newer form", ""},
    Rule{"G-22", noted, "`cuda_graph_impl = local` without an inference scope: training alone is recorded",
         "Megatron would also record inference, layer by layer; here encore generate records its own decode "
         "step",
         "set inference_cuda_graph_scope = none", "C10"},
    Rule{"G-23", noted, "`te_rng_tracker` or `use_te_rng_tracker`: ignored",
         "random positions lie in device memory and advance with every replay in any case", "leave it out",
         "C41, C71"},
    Rule{"G-24", noted, "`graph.warmup_steps = 0`",
         "the first step is recorded before any has run eagerly, so its time includes all set-up",
         "set graph.warmup_steps = 1 or more", "G9"},
    Rule{"G-25", noted, "`graph.validate_every` with `graph.impl = none`: ignored",
         "there is no replay to compare with an eager step", "leave it out", ""},
    Rule{"G-26", lifted,
         "recompute of whole layers or of single modules, inside, outside or covering what is recorded",
         "recomputed segments are segments like others and are recorded with the backward pass they serve",
         "", "C18, C19"},
    Rule{"G-27", lifted, "dropout inside a part that is both recomputed and recorded",
         "random numbers follow from position and counter: a recomputed segment draws the same ones, and "
         "nothing is rewound",
         "", "C20, C21, C22"},
    Rule{"G-28", lifted,
         "delayed weight gradients with any scope, with attention biases, and without overlapped "
         "communication",
         "they are segments of their own (of attn, mlp and mamba; those of experts stay in place), and "
         "gradients accumulate in place at fixed addresses",
         "", "C37, C38, C39, C62"},
    Rule{"G-29", lifted, "`full_iteration` with the check for a loss or gradient norm that is not finite",
         "the check reads both after the step and not inside the graph", "", "C40, C72"},
    Rule{"G-30", lifted, "a recorded optimizer whose learning rate, clipping and step number change",
         "it reads them from device memory in every replay, and its decisions are made there", "", "C51, G5"},
    Rule{"G-31", lifted, "`cuda_graph_impl = local` with modules of layers, in training",
         "local and transformer_engine mean the same here: one executor serves every scope", "", "C70"},
    Rule{"G-32", lifted, "reuse of activation memory without a declared order of forward and backward",
         "the memory plan follows the order of the program itself, for training and for evaluation", "",
         "C61"},
    Rule{"G-33", lifted, "several models, optimizers and devices with graphs in one process",
         "nothing of a recording is global", "", "G6"},
    Rule{"G-34", lifted, "a loss or a gradient kept over later replays",
         "results are handed out as values or copies, never as graph memory", "", "G8"},
    Rule{"G-35", refused, "a length in `graph.buckets` above `train.seq`",
         "no training sequence is that long", "leave it out, or raise train.seq", ""},
    Rule{"G-36", refused, "more lengths in `graph.buckets` than `graph.recordings`",
         "each length is recorded apart", "raise graph.recordings, or leave lengths out", ""},
    Rule{"G-37", refused, "`full` beside other names in `train.recompute`", "it covers whole layers",
         "keep full alone, or leave it out", ""},
    Rule{"G-38", refused, "an unknown name in `train.recompute` or `recompute_modules`",
         "nothing else is computed again here, and nothing that was asked for is silently kept",
         "use some of attn (Megatron: core_attn), mlp, moe and mamba, or full alone", "C49"},
    Rule{"G-39", refused, "`recompute_modules` without `recompute_granularity = selective`",
         "single modules are computed again only in the selective form",
         "set recompute_granularity = selective, or leave recompute_modules out", ""},
    Rule{"G-40", refused, "`recompute_method` other than `uniform`, or `recompute_num_layers` other than 1",
         "every layer is computed again from its own input",
         "set recompute_method = uniform and recompute_num_layers = 1", ""},
    Rule{"G-41", noted, "`core_attn` in `recompute_modules`, or `selective` alone: `train.recompute = attn`",
         "normalization and projection before the attention are computed again with it",
         "set train.recompute = attn", ""},
    Rule{"G-42", refused, "`parallel.virtual_stages` above 1 with `parallel.pipeline = 1`",
         "chunks are taken in turn by the stages of a pipeline",
         "set parallel.pipeline above 1, or parallel.virtual_stages = 1", ""},
    Rule{"G-43", refused,
         "`model.layers` that `parallel.pipeline` times `parallel.virtual_stages` does not divide",
         "every chunk has the same number of layers", "choose numbers whose product divides model.layers",
         "C60"},
    Rule{"G-44", refused,
         "`train.microbatches` that `parallel.pipeline` does not divide, with `parallel.virtual_stages` "
         "above 1",
         "a stage changes its chunk after as many microbatches as there are stages",
         "make train.microbatches a multiple of parallel.pipeline", ""},
    Rule{"G-45", refused, "`train.expert_capacity` together with `train.expert_budget` below 1",
         "with a capacity the rows of the experts are already bounded",
         "set train.expert_budget = 1, or train.expert_capacity = 0", ""},
    Rule{"G-46", refused,
         "`train.balance_loss`, `train.router_z_loss`, `train.router_jitter`, `train.expert_capacity` or "
         "`train.expert_budget` for a model without experts, or `train.expert_bias_rate` for one without "
         "`model.expert_bias`",
         "the model has nothing that it would act on", "leave it out", ""},
    Rule{"G-47", refused, "a name in `train.recompute` of which the model has no layer",
         "there is nothing to compute again", "leave it out of train.recompute", ""},
    Rule{"G-48", refused, "`attn` or `mlp` in `graph.modules` for a model without such layers",
         "there is nothing to record", "leave it out of graph.modules", "C14"},
    Rule{"G-49", lifted, "`moe` as a whole, without a capacity and without padding",
         "the experts' products read their rows from device memory, so shapes do not depend on the routing",
         "", "C15"},
    Rule{"G-50", lifted,
         "a budget for the rows of the experts (`train.expert_budget`) with every kind of recording",
         "rows are counted on the device, and a step that needs more than were kept is finished eagerly", "",
         "C34, C35"},
    Rule{"G-51", refused, "`train.tune_products = on` for experts on tensor ranks",
         "each rank measures by itself, and a router that rounds differently on two of them would send a "
         "token two ways",
         "set train.tune_products = off, or parallel.tensor = 1", ""},
    Rule{graph::rule_buffer.id, refused_at_run, graph::rule_buffer.text,
         "a replay would read what was captured, not what was given", "set graph.recapture = true",
         "C53, C54, C55, G1"},
    Rule{graph::rule_microbatches.id, refused_at_run, graph::rule_microbatches.text,
         "a replay would leave out the rest, or train again on old data",
         "give as many microbatches as train.microbatches", "G2, G7"},
    Rule{graph::rule_program.id, refused_at_run, graph::rule_program.text,
         "a replay runs the segments it was recorded from, in their order", "set graph.recapture = true",
         "C52, C56, C58"},
    Rule{graph::rule_scalar.id, refused_at_run, graph::rule_scalar.text,
         "a replay would go on with the captured number", "use a name that `names()` of the scalars lists",
         "C65"},
    Rule{graph::rule_released.id, refused_at_run, graph::rule_released.text, "their memory is gone",
         "record anew: run a step after the reset", "C68"},
    Rule{graph::rule_host_work.id, refused_at_run, graph::rule_host_work.text,
         "a replay repeats device work alone", "do it before or after the step", "C16"},
    Rule{graph::rule_length.id, refused_at_run, graph::rule_length.text,
         "shapes are fixed when a step is recorded", "declare a larger length, or shorten the sequence",
         "C80"},
    Rule{graph::rule_memory.id, refused_at_run, graph::rule_memory.text,
         "memory is planned before the first step and not found during one",
         "raise graph.memory_limit, or make the microbatch smaller", "C69"},
    Rule{graph::rule_recordings.id, refused_at_run, graph::rule_recordings.text,
         "recordings are bounded: the step runs eagerly and says so",
         "raise graph.recordings, or set graph.buckets", ""},
    Rule{graph::rule_budget.id, refused_at_run, graph::rule_budget.text,
         "a recording has room for so many: the step is taken back, runs eagerly with all the rows it needs, "
         "and "
         "says so; the recording stays",
         "raise train.expert_budget to what the step tells", "C32"},
};

constexpr auto count_of_graph_rules = static_cast<std::size_t>(GraphRule::tuned_experts_on_tensor_ranks) + 1;
static_assert(rules.size() == count_of_graph_rules + std::size(graph::contract_rules));

constexpr bool ids_are_numbered() {
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const bool at_run = i >= count_of_graph_rules;
    const std::size_t number = at_run ? i - count_of_graph_rules + 1 : i + 1;
    const std::string_view id = rules[i].id;
    if (id.size() != 4 || id[0] != (at_run ? 'R' : 'G') || id[1] != '-') return false;
    if (static_cast<std::size_t>(id[2] - '0') != number / 10) return false;
    if (static_cast<std::size_t>(id[3] - '0') != number % 10) return false;
    if ((rules[i].outcome == refused_at_run) != at_run) return false;
  }
  return true;
}
static_assert(ids_are_numbered());

constexpr std::array without_meaning = {
    PeerRules{"C17, C24, C25, C26, C27, C28, C29, C30, C31, C33, C81", "activations moved to host memory",
              "activations stay in one planned arena"},
    PeerRules{"C23, C48", "weights sharded over ranks and gathered on use", "a device holds whole weights"},
    PeerRules{
        "C36, C77", "expert communication, overlapped with computation or with uneven inputs",
        "shapes are static: every rank exchanges as many rows, of which the device knows which are used"},
    PeerRules{"C42", "an allocator whose segments grow",
              "device memory is allocated once, before the first step"},
    PeerRules{"C43", "hybrid context parallelism", "a sequence lies on one device"},
    PeerRules{"C44, C45, C46, C47", "graphs of inference and of reinforcement learning",
              "a training records no generation (G-05); encore generate records its decode step by itself"},
    PeerRules{"C50, C78", "sharded data parallelism",
              "of the optimizer's state alone (parallel.shard_optimizer), whose collectives are recorded"},
    PeerRules{"C57, C59, C66", "hooks, trainable buffers and autocast around a recorded module",
              "a step is a list of segments, and nothing else runs in it"},
    PeerRules{"C63", "an input that needs a gradient and gets none",
              "backward segments are written out, so every gradient is named"},
    PeerRules{"C64", "cached low-precision copies of weights", "weights are read as they are stored"},
    PeerRules{"C67", "a rank without a layer that can be recorded", "every layer can be recorded"},
    PeerRules{"C74, C75, C76", "packed sequences", "a sequence is not packed: its length is the batch's"},
    PeerRules{"C79", "a model whose own forward pass bypasses the recorder",
              "every launch goes through one gateway"},
    PeerRules{"G10", "a warning whose own code fails", "messages are built by compiled, tested code"},
};

}  // namespace

std::string_view name_of(RuleOutcome outcome) noexcept {
  constexpr std::array<std::string_view, 4> names = {"refused", "refused at run", "noted", "lifted"};
  return names[static_cast<std::size_t>(outcome)];
}

std::span<const Rule> graph_rules() { return rules; }

const Rule& graph_rule(GraphRule rule) { return rules.at(static_cast<std::size_t>(rule)); }

std::span<const PeerRules> rules_without_meaning() { return without_meaning; }

std::string refusal(GraphRule rule, std::string_view what, std::string_view suffix) {
  const Rule& broken = graph_rule(rule);
  return fmt::format("{}: {}: {}; {}{}", broken.id, what, broken.reason, broken.change, suffix);
}

void refuse(GraphRule rule, std::string_view what, std::string_view suffix) {
  throw ConfigurationError(refusal(rule, what, suffix));
}

std::string note(GraphRule rule, std::string_view what) {
  return fmt::format("{}: {}: {}", graph_rule(rule).id, what, graph_rule(rule).reason);
}

}  // namespace encore::model
