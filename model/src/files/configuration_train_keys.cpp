// SPDX-License-Identifier: Apache-2.0
#include "configuration_keys.hpp"

namespace encore::model {

std::vector<Key> train_keys() {
  constexpr auto train = &Configuration::train;
  using Train = TrainConfiguration;
  return {
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
      real<train, &Train::balance_loss>("train.balance_loss", from(0, 1e6), "0",
                                        "coefficient of the loss that balances the load of the experts"),
      real<train, &Train::router_z_loss>("train.router_z_loss", from(0, 1e6), "0",
                                         "coefficient of the squared log-sum-exp of the router's logits"),
      real<train, &Train::router_jitter>(
          "train.router_jitter", below(0, 1), "0",
          "the router's input is multiplied by a random number from 1 - this to 1 + this"),
      real<train, &Train::expert_bias_rate>("train.expert_bias_rate", from(0, 1), "0.001",
                                            "how far a step moves an expert's bias towards an even load"),
      real<train, &Train::expert_capacity>(
          "train.expert_capacity", from(0, 1e6), "0",
          "tokens an expert takes, relative to its even share; further ones are dropped; 0: none is"),
      real<train, &Train::expert_budget>("train.expert_budget", above(0, 1), "1",
                                         "rows kept for the experts, relative to all that can be needed; a "
                                         "step that needs more runs eagerly"),
      named<train, &Train::tune_products>("train.tune_products", "off",
                                          "cuda: whether the first step measures which of the library's "
                                          "algorithms is the fastest for each matrix "
                                          "product; another process may then pick others, and differ in the "
                                          "last bits, unless both have the same "
                                          "train.tuning_cache; on hosts there is nothing to tune"),
      plain<train, &Train::tuning_cache>({.name = "train.tuning_cache",
                                          .kind = KeyKind::path,
                                          .range = from(0, 4096),
                                          .fallback = "empty: they are not kept",
                                          .help = "file that keeps the algorithms that train.tune_products "
                                                  "picks, and gives them to the next process"}),
      truth<train, &Train::delay_wgrad>("train.delay_wgrad", "false",
                                        "weight gradients of attn, mlp and mamba after all input gradients; "
                                        "those of experts stay in place")};
}

}  // namespace encore::model
