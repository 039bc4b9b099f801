// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/boundary_checks.hpp>

namespace encore::graph {

namespace {

constexpr std::int64_t words_of_a_checksum = sizeof(kernels::Checksum) / sizeof(std::uint64_t);

/// By segment: the buffers that it writes and that live on.
std::vector<std::vector<BufferId>> checked_buffers(const Outline& outline) {
  const auto& segments = outline.segments();
  std::vector<std::vector<BufferId>> checked(segments.size());
  std::vector<bool> read_later(outline.buffers().size(), false);
  for (std::size_t i = segments.size(); i-- > 0;) {
    for (const BufferId id : segments[i].writes)
      if (outline.buffer(id).elements() > 0 && !outline.buffer(id).partly_written &&
          (outline.buffer(id).kind != BufferKind::activation || read_later[static_cast<std::size_t>(id)]))
        checked[i].push_back(id);
    for (const BufferId id : segments[i].reads) read_later[static_cast<std::size_t>(id)] = true;
  }
  return checked;
}

template <class Space>
kernels::ChecksumPart part_of(const Execution<Space>& x, const Outline& outline, BufferId id) {
  const Buffer& buffer = outline.buffer(id);
  return {x.bytes(id), buffer.elements(), buffer.type};
}

}  // namespace

template <class Space>
CheckedProgram<Space> with_boundary_checks(const Program<Space>& program) {
  constexpr std::int64_t slots = CheckedProgram<Space>::slots;
  const Outline& outline = program.outline();
  const auto checked = checked_buffers(outline);

  CheckedProgram<Space> result;
  for (std::size_t i = 0; i < checked.size(); ++i)
    if (!checked[i].empty()) result.boundaries.push_back(outline.segments()[i].name);
  const auto rows = static_cast<std::int64_t>(result.boundaries.size());

  for (const Buffer& buffer : outline.buffers()) result.program.add_buffer(buffer);
  result.ring = result.program.add_buffer(
      {"boundary/ring", backend::DataType::uint64, {slots, rows, words_of_a_checksum}, BufferKind::metric});
  result.slot =
      result.program.add_buffer({"boundary/slot", backend::DataType::int64, {1}, BufferKind::state});

  std::int64_t row = 0;
  for (std::size_t i = 0; i < checked.size(); ++i) {
    const Segment& segment = outline.segments()[i];
    result.program.add_segment(segment, program.body(i));
    if (checked[i].empty()) continue;
    Segment boundary = segment;
    boundary.name += "/boundary";
    boundary.reads = checked[i];
    boundary.reads.push_back(result.slot);
    boundary.writes = {result.ring};
    result.program.add_segment(std::move(boundary), [ids = checked[i], ring = result.ring, slot = result.slot,
                                                     row, rows](Execution<Space>& x) {
      std::vector<kernels::ChecksumPart> parts;
      for (const BufferId id : ids) parts.push_back(part_of(x, x.outline(), id));
      kernels::checksum<Space>(x.stream(), parts, x.template pointer<const std::int64_t>(slot),
                               reinterpret_cast<kernels::Checksum*>(x.template pointer<std::uint64_t>(ring)),
                               row, rows);
    });
    ++row;
  }
  result.program.add_segment(
      {"boundary/advance", Module::random, Phase::update, -1, -1, {}, {result.ring, result.slot}},
      [ring = result.ring, slot = result.slot, rows](Execution<Space>& x) {
        kernels::advance_checksums<Space>(
            x.stream(), x.template pointer<std::int64_t>(slot), slots,
            reinterpret_cast<kernels::Checksum*>(x.template pointer<std::uint64_t>(ring)), rows);
      });
  return result;
}

std::string first_non_finite(const std::vector<std::string>& boundaries,
                             std::span<const kernels::Checksum> checksums) {
  for (std::size_t i = 0; i < boundaries.size(); ++i)
    if (checksums[i].non_finite > 0)
      return "segment '" + boundaries[i] + "' wrote " + std::to_string(checksums[i].non_finite) +
             " values of " + std::to_string(checksums[i].elements) + " that are not finite";
  return {};
}

std::string first_difference(const std::vector<std::string>& boundaries,
                             std::span<const kernels::Checksum> left,
                             std::span<const kernels::Checksum> right) {
  for (std::size_t i = 0; i < boundaries.size(); ++i)
    if (left[i] != right[i]) return "what segment '" + boundaries[i] + "' wrote differs first";
  return {};
}

#define ENCORE_INSTANTIATE(SPACE) template CheckedProgram<SPACE> with_boundary_checks(const Program<SPACE>&);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::graph
