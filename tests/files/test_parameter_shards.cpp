// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/parameter_layout.hpp>
#include <encore/model/files/presets.hpp>

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <set>

namespace {

using namespace encore::model;

/// Each element of every tensor, with the ranks that have it.
struct Owner {
  std::int64_t ranks = 0;
  std::int64_t first = 0;  ///< of these, those that say they are the first
};
using Owners = std::map<std::pair<std::string, std::int64_t>, Owner>;

template <class Visit>
void for_each_element(const ParameterBox& box, const Visit& visit) {
  REQUIRE(box.extents.size() == box.strides.size());
  const std::int64_t count = box.elements();
  for (std::int64_t item = 0; item < count; ++item) {
    std::int64_t rest = item, in_tensor = box.tensor_offset, here = box.offset;
    for (std::size_t i = box.extents.size(); i > 0; --i) {
      const std::int64_t index = rest % box.extents[i - 1];
      rest /= box.extents[i - 1];
      in_tensor += index * box.tensor_strides[i - 1];
      here += index * box.strides[i - 1];
    }
    visit(in_tensor, here);
  }
}

Owners owners_of(const ModelConfiguration& model, const ParallelConfiguration& parallel) {
  Owners owners;
  const RankLayout ranks(parallel, true);
  for (std::int64_t rank = 0; rank < ranks.ranks(); ++rank) {
    const ParameterLayout layout(model, false, shard_of(parallel, true, rank));
    std::set<std::int64_t> here;
    bool twice = false;
    for (const ParameterBox& box : layout.boxes())
      for_each_element(box, [&](std::int64_t in_tensor, std::int64_t at) {
        twice = twice || at >= layout.elements() || !here.insert(at).second;
        Owner& owner = owners[{box.name, in_tensor}];
        ++owner.ranks;
        if (box.is_first) ++owner.first;
      });
    CHECK(!twice);
    // Every parameter's own elements are in some box.
    CHECK(static_cast<std::int64_t>(here.size()) == layout.parameter_count());
    std::int64_t end = 0;
    for (const ParameterSection& section : layout.sections()) {
      CHECK(section.elements.begin == end);
      end = section.elements.end;
    }
    CHECK(end == layout.elements());
  }
  return owners;
}

ModelConfiguration small_model(const std::vector<std::string>& settings) {
  ConfigurationSources sources;
  for (const std::string& setting : settings) sources.assignment(setting);
  return sources.resolve().configuration.model;
}

const std::vector<std::vector<std::string>> models = {
    {"model.family=gpt2", "model.layers=4", "model.hidden=16", "model.heads=4", "model.vocab=50",
     "model.seq=8"},
    {"model.family=llama", "model.layers=4", "model.hidden=16", "model.heads=4", "model.kv_heads=2",
     "model.head_dim=4", "model.ffn=24", "model.vocab=40", "model.seq=8"},
    {"model.family=qwen3_moe", "model.layers=4", "model.hidden=16", "model.heads=4", "model.kv_heads=2",
     "model.head_dim=4", "model.expert_ffn=8", "model.experts=4", "model.topk=2", "model.vocab=40",
     "model.seq=8"},
    {"model.family=gpt_oss", "model.layers=4", "model.hidden=16", "model.heads=4", "model.kv_heads=2",
     "model.head_dim=4", "model.expert_ffn=8", "model.experts=4", "model.topk=2", "model.vocab=40",
     "model.seq=8"},
    {"model.family=mamba2", "model.layers=4", "model.hidden=16", "model.mamba_heads=4",
     "model.mamba_head_dim=8", "model.mamba_state=4", "model.mamba_groups=2", "model.mamba_norm_groups=2",
     "model.vocab=40", "model.seq=8"}};

}  // namespace

TEST_CASE("the ranks of every layout have each element of every tensor, and as many of them as share it") {
  for (const auto& settings : models) {
    CAPTURE(settings.front());
    const ModelConfiguration model = small_model(settings);
    const bool experts = has_block(model, Block::experts);
    const Owners alone = owners_of(model, {});
    for (const auto& [data, tensor, expert, pipeline, stages] :
         std::vector<std::array<std::int64_t, 5>>{{2, 1, 1, 1, 1},
                                                  {1, 2, 1, 1, 1},
                                                  {4, 1, 2, 1, 1},
                                                  {2, 2, 2, 1, 1},
                                                  {1, 1, 1, 2, 2},
                                                  {2, 2, 2, 2, 1}}) {
      CAPTURE(data);
      CAPTURE(tensor);
      CAPTURE(expert);
      CAPTURE(pipeline);
      const ParallelConfiguration parallel{.data = data,
                                           .tensor = tensor,
                                           .expert = experts ? expert : 1,
                                           .pipeline = pipeline,
                                           .virtual_stages = stages};
      const Owners owners = owners_of(model, parallel);
      REQUIRE(owners.size() == alone.size());
      bool as_shared = true, one_first = true;
      for (const auto& [element, owner] : owners) {
        const std::int64_t count = owner.ranks;
        one_first = one_first && alone.contains(element) && owner.first == 1;
        // Data ranks share everything but experts; tensor ranks some; stages nothing but a tied table.
        as_shared =
            as_shared && (count == data || count == data * tensor || count == data / parallel.expert ||
                          count == tensor * data / parallel.expert || count == 2 * data);
      }
      CHECK(one_first);
      CHECK(as_shared);
    }
  }
}

TEST_CASE("one rank has whole tensors in one box each, where they always were") {
  for (const auto& settings : models) {
    const ParameterLayout layout(small_model(settings), false);
    const auto slices = layout.slices();
    const auto boxes = layout.boxes();
    REQUIRE(boxes.size() == slices.size());
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      CHECK(boxes[i].name == slices[i].name);
      CHECK(boxes[i].shape == slices[i].shape);
      CHECK(boxes[i].offset == slices[i].offset);
      CHECK(boxes[i].tensor_offset == 0);
      CHECK(boxes[i].elements() == slices[i].elements());
    }
  }
}

TEST_CASE("queries, keys and values of a tensor rank are its own heads of each") {
  const ModelConfiguration model = small_model(models[1]);
  const ParameterLayout layout(model, false, shard_of({1, 2}, true, 1));
  CHECK(layout.parameter("layer.0/attn/qkv.weight").shape == std::vector<std::int64_t>{8 + 4 + 4, 16});
  CHECK(layout.parameter("layer.0/attn/output.weight").shape == std::vector<std::int64_t>{16, 8});
  CHECK(layout.parameter("layer.0/mlp/up.weight").shape == std::vector<std::int64_t>{24, 16});
  CHECK_THROWS_WITH_AS(layout.slices(),
                       "this rank has a part of 'embedding/tokens', which is no slice of a tensor",
                       encore::InternalError);
}

TEST_CASE("ranks are numbered by tensor, data and stage, and experts are shared among neighbours") {
  const RankLayout layout(ParallelConfiguration{.data = 4, .tensor = 2, .expert = 2, .pipeline = 2}, true);
  CHECK(layout.ranks() == 16);
  CHECK(layout.place_of(11) == RankPlace{1, 1, 1});
  for (std::int64_t rank = 0; rank < layout.ranks(); ++rank)
    CHECK(layout.rank_at(layout.place_of(rank)) == rank);
  // Members of a group have one number, and count from 0 in it.
  for (int index = 0; index < rank_groups; ++index) {
    const auto group = static_cast<RankGroup>(index);
    std::map<std::int64_t, std::vector<std::int64_t>> groups;
    for (std::int64_t rank = 0; rank < layout.ranks(); ++rank) {
      const RankPlace place = layout.place_of(rank);
      auto& members = groups[layout.number_of(group, place)];
      CHECK(layout.rank_in(group, place) == std::ssize(members));
      members.push_back(rank);
    }
    for (const auto& [number, members] : groups) CHECK(std::ssize(members) == layout.size(group));
  }
}

TEST_CASE("shares are equal where they can be, and else multiples of 8 with less for the last") {
  CHECK(share_of(12, 4, 1) == Stretch{3, 6});
  CHECK(share_of(50257, 2, 0) == Stretch{0, 25136});
  CHECK(share_of(50257, 2, 1) == Stretch{25136, 50257});
  CHECK(share_of(9, 8, 7).size() == 0);
}
