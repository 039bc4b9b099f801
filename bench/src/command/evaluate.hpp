// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/token_source.hpp>
#include <encore/model/trainer.hpp>

#include <cstdint>

#include "console.hpp"
#include "options.hpp"

namespace encore::command {

/// `encore eval`: the loss of a loaded model over data, or its distance from a reference file. Returns the exit code.
int evaluate(const EvaluateOptions& options, Console& console);

/// Mean loss of the first `sequences` sequences of the source, in nats a token.
double mean_loss(model::Trainer& trainer, const model::TokenSource& source, std::int64_t sequences);

}  // namespace encore::command
