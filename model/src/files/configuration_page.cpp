// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/configuration_sources.hpp>

#include <fmt/format.h>

namespace encore::model {
namespace {

constexpr std::string_view introduction = R"(# Configuration

<!-- Written by `encore info --keys --markdown`; a test keeps this page equal to the code. -->

A key is set by a preset (`--preset`), the model of a checkpoint (`--load`), a JSON file (`--config`), `--set key=value` or a flag
of its own; a later kind of source wins over an earlier one. A JSON file holds nested sections or dotted keys. An unknown key, a
value that is not allowed and a combination that makes no sense are errors; those about what is recorded have ids, listed in
[refusals.md](refusals.md). `encore info` with any of these options shows every key with its value and source.
)";

constexpr std::string_view megatron = R"(
## Megatron's names

Accepted wherever a key is, for what is recorded and what belongs to it. One setting in two forms is an error, and JSON's `null`
sets nothing. `encore train` and the other commands also have `--cuda_graph_impl`, `--cuda_graph_scope`, `--cuda_graph_modules` and
`--cuda_graph_warmup_steps`.

| Name | Here |
| --- | --- |
)";

std::string section_of(const std::string& key) {
  const std::size_t dot = key.find('.');
  return dot == std::string::npos ? "Others" : "`" + key.substr(0, dot) + "`";
}

}  // namespace

std::string configuration_keys_as_markdown() {
  std::string text(introduction);
  std::string section;
  for (const KeyDescription& key : configuration_keys()) {
    if (section_of(key.name) != section) {
      section = section_of(key.name);
      text += fmt::format("\n## {}\n\n| Key | Meaning | Allowed | Default |\n| --- | --- | --- | --- |\n",
                          section);
    }
    text += fmt::format("| `{}` | {} | {} | {} |\n", key.name, key.help, key.allowed, key.fallback);
  }
  text += megatron;
  for (const MegatronSpelling& spelling : megatron_spellings())
    text += fmt::format("| `{}` | {} |\n", spelling.name, spelling.meaning);
  return text;
}

}  // namespace encore::model
