// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/dump.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace encore::graph {

namespace {

std::vector<std::string> names_of(const Outline& outline, const std::vector<BufferId>& ids) {
  std::vector<std::string> names;
  names.reserve(ids.size());
  for (const BufferId id : ids) names.push_back(outline.buffer(id).name);
  return names;
}

std::uint64_t bytes_of(const Outline& outline, const std::vector<BufferId>& ids) {
  std::uint64_t bytes = 0;
  for (const BufferId id : ids) bytes += outline.buffer(id).bytes();
  return bytes;
}

DumpedBuffer dumped(const Outline& outline, const Buffer& buffer) {
  DumpedBuffer entry;
  entry.name = buffer.name;
  entry.type = backend::name_of(buffer.type);
  entry.kind = name_of(buffer.kind);
  entry.shape = buffer.shape;
  entry.bytes = buffer.bytes();
  if (buffer.part) {
    entry.part_of = outline.buffer(buffer.part->whole).name;
    entry.part_offset = buffer.part->offset_bytes;
  }
  return entry;
}

DumpedSegment dumped(const Outline& outline, const Segment& segment) {
  return {segment.name,
          std::string(name_of(segment.module)),
          std::string(name_of(segment.phase)),
          segment.layer,
          segment.microbatch,
          names_of(outline, segment.reads),
          names_of(outline, segment.writes),
          bytes_of(outline, segment.reads),
          bytes_of(outline, segment.writes),
          {},
          segment.eager_because};
}

/// `a, b (3), c` for a, b, b, b, c.
std::string kernel_list(const std::vector<std::string>& kernels) {
  std::string text;
  for (std::size_t i = 0; i < kernels.size();) {
    std::size_t end = i;
    while (end < kernels.size() && kernels[end] == kernels[i]) ++end;
    text += (text.empty() ? "" : ", ") + kernels[i];
    if (end - i > 1) text += fmt::format(" ({})", end - i);
    i = end;
  }
  return text;
}

std::string segment_text(const DumpedSegment& segment) {
  std::string text = fmt::format("  {}  [{} {}]  reads {} ({} bytes), writes {} ({} bytes)\n", segment.name,
                                 segment.module, segment.phase, segment.reads.size(), segment.read_bytes,
                                 segment.writes.size(), segment.written_bytes);
  if (!segment.eager_because.empty()) text += fmt::format("    eager: {}\n", segment.eager_because);
  if (!segment.kernels.empty()) text += fmt::format("    {}\n", kernel_list(segment.kernels));
  return text;
}

std::string buffer_text(const DumpedBuffer& buffer) {
  std::string text = fmt::format("  {}  {} [{}]  {}, {} bytes", buffer.name, buffer.type,
                                 fmt::join(buffer.shape, ", "), buffer.kind, buffer.bytes);
  if (!buffer.part_of.empty()) text += fmt::format(", at {} of {}", buffer.part_offset, buffer.part_of);
  if (buffer.arena_offset)
    text += fmt::format(", at {} of the arena from {} to {}", *buffer.arena_offset, buffer.first_segment,
                        buffer.last_segment);
  return text + '\n';
}

}  // namespace

Dump make_dump(const Outline& outline, const MemoryPlan& plan, const std::vector<Run>& runs,
               const std::vector<std::vector<std::string>>& kernels,
               std::vector<std::pair<std::string, std::string>> settings) {
  Dump dump;
  dump.settings = std::move(settings);
  dump.arena_bytes = plan.arena_bytes;
  for (const Buffer& buffer : outline.buffers()) dump.buffers.push_back(dumped(outline, buffer));
  for (const PlannedActivation& activation : plan.activations) {
    DumpedBuffer& buffer = dump.buffers[static_cast<std::size_t>(activation.buffer)];
    buffer.arena_offset = activation.offset;
    buffer.first_segment = outline.segments()[activation.first_segment].name;
    buffer.last_segment = outline.segments()[activation.last_segment].name;
  }
  for (const Segment& segment : outline.segments()) dump.segments.push_back(dumped(outline, segment));
  for (std::size_t index = 0; index < kernels.size(); ++index)
    dump.segments.at(index).kernels = kernels[index];
  for (const Run& run : runs) {
    DumpedRun entry{run.name,
                    run.captured,
                    outline.segments()[run.first].name,
                    outline.segments()[run.end - 1].name,
                    run.end - run.first,
                    0};
    for (std::size_t index = run.first; index < run.end; ++index)
      entry.kernels += dump.segments[index].kernels.size();
    dump.runs.push_back(std::move(entry));
  }
  return dump;
}

std::string to_text(const Dump& dump) {
  std::string text =
      fmt::format("{} buffers, an arena of {} bytes; {} segments in {} runs\n", dump.buffers.size(),
                  dump.arena_bytes, dump.segments.size(), dump.runs.size());
  std::size_t next = 0;
  for (const DumpedRun& run : dump.runs) {
    text += fmt::format("\nrun {} ({}), {} segments, {} kernels\n", run.name,
                        run.captured ? "captured" : "eager", run.segments, run.kernels);
    const std::size_t end = std::min<std::size_t>(next + run.segments, dump.segments.size());
    for (; next < end; ++next) text += segment_text(dump.segments[next]);
  }
  text += "\nbuffers\n";
  for (const DumpedBuffer& buffer : dump.buffers) text += buffer_text(buffer);
  return text;
}

}  // namespace encore::graph
