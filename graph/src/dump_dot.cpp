// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/dump.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace encore::graph {

namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') result += '\\';
    result += character == '\n' ? ' ' : character;
  }
  return result + '"';
}

/// Who wrote each buffer last. Parts and wholes stand for each other.
class Writers {
 public:
  explicit Writers(const Dump& dump) {
    for (const DumpedBuffer& buffer : dump.buffers)
      if (!buffer.part_of.empty()) {
        whole_of_[buffer.name] = buffer.part_of;
        parts_of_[buffer.part_of].push_back(buffer.name);
      }
  }

  void write(const std::string& buffer, std::size_t segment) {
    last_[buffer] = segment;
    // A whole that is written hides what was written to its parts before.
    if (const auto parts = parts_of_.find(buffer); parts != parts_of_.end())
      for (const std::string& part : parts->second) last_.erase(part);
  }

  std::vector<std::size_t> of(const std::string& buffer) const {
    std::vector<std::size_t> segments;
    const auto add = [&](const std::string& name) {
      if (const auto found = last_.find(name); found != last_.end()) segments.push_back(found->second);
    };
    add(buffer);
    if (const auto whole = whole_of_.find(buffer); whole != whole_of_.end() && segments.empty())
      add(whole->second);
    if (const auto parts = parts_of_.find(buffer); parts != parts_of_.end())
      for (const std::string& part : parts->second) add(part);
    return segments;
  }

 private:
  std::unordered_map<std::string, std::size_t> last_;
  std::unordered_map<std::string, std::string> whole_of_;
  std::unordered_map<std::string, std::vector<std::string>> parts_of_;
};

using Edges = std::map<std::pair<std::size_t, std::size_t>, std::vector<std::string>>;

Edges edges_of(const Dump& dump) {
  Writers writers(dump);
  Edges edges;
  for (std::size_t index = 0; index < dump.segments.size(); ++index) {
    const DumpedSegment& segment = dump.segments[index];
    for (const std::string& buffer : segment.reads)
      for (const std::size_t writer : writers.of(buffer))
        if (writer != index) edges[{writer, index}].push_back(buffer);
    for (const std::string& buffer : segment.writes) writers.write(buffer, index);
  }
  return edges;
}

std::string edge_label(const std::vector<std::string>& buffers) {
  constexpr std::size_t most = 3;
  std::string label;
  for (std::size_t i = 0; i < std::min(most, buffers.size()); ++i) label += (i > 0 ? ", " : "") + buffers[i];
  if (buffers.size() > most) label += fmt::format(" and {} more", buffers.size() - most);
  return label;
}

}  // namespace

std::string to_dot(const Dump& dump) {
  std::string text = "digraph step {\n  rankdir=TB;\n  node [shape=box, fontname=\"monospace\"];\n";
  std::size_t next = 0;
  for (std::size_t index = 0; index < dump.runs.size(); ++index) {
    const DumpedRun& run = dump.runs[index];
    text += fmt::format("  subgraph cluster_{} {{\n    label={};\n    style={};\n", index,
                        quoted(fmt::format("{}, {} kernels", run.name, run.kernels)),
                        run.captured ? "solid" : "dashed");
    const std::size_t end = std::min<std::size_t>(next + run.segments, dump.segments.size());
    for (; next < end; ++next) {
      const DumpedSegment& segment = dump.segments[next];
      text +=
          fmt::format("    s{} [label={}];\n", next,
                      quoted(fmt::format("{}, {} kernels, {} bytes in, {} bytes out", segment.name,
                                         segment.kernels.size(), segment.read_bytes, segment.written_bytes)));
    }
    text += "  }\n";
  }
  for (const auto& [ends, buffers] : edges_of(dump))
    text += fmt::format("  s{} -> s{} [label={}];\n", ends.first, ends.second, quoted(edge_label(buffers)));
  return text + "}\n";
}

}  // namespace encore::graph
