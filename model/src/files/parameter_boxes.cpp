// SPDX-License-Identifier: Apache-2.0
#include "parameter_boxes.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>

namespace encore::model {

namespace {

/// A stretch of a dimension of the whole parameter, and where the rank has it.
struct Piece {
  Stretch whole;
  std::int64_t local;
};

std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * shape[i - 1];
  return strides;
}

/// The pieces of every dimension.
std::vector<std::vector<Piece>> pieces_of(const ModelShard& shard, const Parameter& parameter) {
  std::vector<std::vector<Piece>> pieces;
  for (const std::int64_t extent : parameter.whole_shape) pieces.push_back({{{0, extent}, 0}});
  for (const Partition& partition : parameter.partitions) {
    auto& of_dimension = pieces.at(partition.dimension);
    of_dimension.clear();
    std::int64_t before = 0, local = 0;
    for (const std::int64_t section : partition.sections) {
      const Stretch share = share_in(shard, partition, section);
      const Stretch whole{before + share.begin, before + share.end};
      if (!of_dimension.empty() && of_dimension.back().whole.end == whole.begin) {
        of_dimension.back().whole.end = whole.end;
      } else {
        of_dimension.push_back({whole, local});
      }
      before += section;
      local += share.size();
    }
  }
  return pieces;
}

/// A tensor is a stretch of its parameter's elements; as a box it has one index in the first dimensions, some in one,
/// and all in those behind it.
std::vector<Stretch> box_of(const Parameter& parameter, std::int64_t begin, std::int64_t elements) {
  const std::vector<std::int64_t> strides = strides_of(parameter.whole_shape);
  std::vector<Stretch> box;
  bool found = false;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    const std::int64_t index = begin / strides[i] % parameter.whole_shape[i];
    std::int64_t count = 1;
    if (found) {
      count = parameter.whole_shape[i];
    } else if (elements >= strides[i]) {
      found = true;
      count = elements / strides[i];
    }
    box.push_back({index, index + count});
  }
  std::int64_t covered = 1;
  for (const Stretch& stretch : box) covered *= stretch.size();
  if (covered != elements)
    throw InternalError("a tensor of parameter '" + parameter.name + "' is no box of it");
  return box;
}

/// Whether no rank before this one has the same of a parameter.
bool has_first_copy(const ModelShard& shard, const Parameter& parameter) {
  const RankGroup copies =
      parameter.is_dealt_out(RankGroup::expert) ? RankGroup::expert_data : RankGroup::data;
  if (shard.layout.rank_in(copies, shard.place) > 0) return false;
  if (shard.place.tensor > 0 && !parameter.is_dealt_out(RankGroup::tensor)) return false;
  // What is not of a layer is in the first stage or in the last; a tied table is in both.
  return shard.has_embedding() || parameter.name != "embedding/tokens";
}

}  // namespace

Stretch share_in(const ModelShard& shard, const Partition& partition, std::int64_t section) {
  return share_of(section, shard.layout.size(partition.group),
                  shard.layout.rank_in(partition.group, shard.place));
}

void append_boxes(const ModelShard& shard, const Parameter& parameter,
                  const std::vector<ParameterSlice>& form, std::vector<ParameterBox>& boxes) {
  const std::vector<std::vector<Piece>> pieces = pieces_of(shard, parameter);
  const std::vector<std::int64_t> whole = strides_of(parameter.whole_shape),
                                  local = strides_of(parameter.shape);
  const std::size_t dimensions = pieces.size();
  for (const ParameterSlice& slice : form) {
    const std::int64_t first = slice.offset - parameter.offset;
    const std::vector<Stretch> tensor = box_of(parameter, first, slice.elements());
    // Every combination of one piece of each dimension.
    for (std::vector<std::size_t> chosen(dimensions, 0); !chosen.empty();) {
      ParameterBox box{slice.name, slice.shape, -first, parameter.offset,
                       {},         whole,       local,  has_first_copy(shard, parameter)};
      for (std::size_t i = 0; i < dimensions; ++i) {
        const Piece& piece = pieces[i][chosen[i]];
        const std::int64_t begin = std::max(piece.whole.begin, tensor[i].begin),
                           end = std::min(piece.whole.end, tensor[i].end);
        box.extents.push_back(std::max<std::int64_t>(0, end - begin));
        box.tensor_offset += begin * whole[i];
        box.offset += (begin - piece.whole.begin + piece.local) * local[i];
      }
      if (box.elements() > 0) boxes.push_back(std::move(box));
      std::size_t dimension = dimensions;
      while (dimension > 0 && ++chosen[dimension - 1] == pieces[dimension - 1].size())
        chosen[--dimension] = 0;
      if (dimension == 0) chosen.clear();
    }
  }
}

}  // namespace encore::model
