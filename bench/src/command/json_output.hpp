// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/memory_forecast.hpp>

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "console.hpp"

namespace encore::command {

/// One object, and a newline. Bytes that are no UTF-8, as a file's name may hold, are replaced.
void print_json(const nlohmann::ordered_json& object, Console& console);

/// `{"sentence": ..., "rule": "G-11", "reason": ..., "change": ...}`; the rule is null where the sentence begins with
/// none, and nothing follows then.
nlohmann::ordered_json refusal_json(std::string_view sentence);

/// `{"total_bytes": ..., "bytes": {"parameter": ..., ...}}`.
nlohmann::ordered_json memory_json(const model::MemoryForecast& forecast);

}  // namespace encore::command
