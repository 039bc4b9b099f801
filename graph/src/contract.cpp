// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/contract.hpp>
#include <encore/graph/contract_rules.hpp>
#include <encore/graph/program.hpp>

#include <algorithm>
#include <string_view>

namespace encore::graph {

namespace {

std::vector<bool> used_buffers(const Outline& outline) {
  std::vector<bool> used(outline.buffers().size(), false);
  for (const Segment& segment : outline.segments())
    for (const auto* list : {&segment.reads, &segment.writes})
      for (const BufferId id : *list) used[static_cast<std::size_t>(id)] = true;
  return used;
}

std::string text_of(const std::vector<std::int64_t>& extents) {
  std::string text = "[";
  for (const std::int64_t extent : extents) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

std::string clause(const ContractRule& rule, const std::string& text) {
  return std::string(rule.id) + ": " + text;
}

}  // namespace

Contract contract_of(const Outline& outline, std::vector<const std::byte*> addresses) {
  return {outline.signature(), outline.buffers().size(), outline.segments().size(), std::move(addresses)};
}

std::vector<std::string> differences(const Outline& outline, const Contract& captured, const Contract& now) {
  std::vector<std::string> found;
  if (captured.signature != now.signature) {
    for (std::size_t i = captured.segments; i < outline.segments().size(); ++i)
      found.push_back(clause(rule_program, "segment '" + outline.segments()[i].name + "' was added"));
    for (std::size_t i = captured.buffers; i < outline.buffers().size(); ++i)
      found.push_back(clause(rule_program, "buffer '" + outline.buffers()[i].name + "' was added"));
    if (found.empty()) found.push_back(clause(rule_program, "another program stands in its place"));
  }
  const std::vector<bool> used = used_buffers(outline);
  const std::size_t common = std::min(captured.addresses.size(), now.addresses.size());
  for (std::size_t i = 0; i < std::min(common, used.size()); ++i)
    if (used[i] && captured.addresses[i] != now.addresses[i])
      found.push_back(
          clause(rule_buffer, "buffer '" + outline.buffers()[i].name + "' lies at another address"));
  return found;
}

void require_match(const Buffer& buffer, backend::DataType type, const std::vector<std::int64_t>& extents,
                   bool contiguous) {
  std::string wrong;
  const auto add = [&](const std::string& what) { wrong += (wrong.empty() ? "" : ", ") + what; };
  if (type != buffer.type)
    add("its type is " + std::string(name_of(buffer.type)) + " and " + std::string(name_of(type)) +
        " was given");
  if (extents != buffer.shape)
    add("its shape is " + text_of(buffer.shape) + " and " + text_of(extents) + " was given");
  if (!contiguous) add("its elements must lie side by side");
  if (!wrong.empty())
    throw ReplayContractError(clause(rule_buffer, "buffer '" + buffer.name + "': " + wrong));
}

}  // namespace encore::graph
