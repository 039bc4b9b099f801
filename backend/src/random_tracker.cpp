// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/random_tracker.hpp>

#include <algorithm>

namespace encore::backend {

namespace {

struct AdvanceOffsets {
  RandomState* states;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const { ++states[i].offset; }
};

}  // namespace

template <class Space>
RandomTracker<Space>::RandomTracker(Stream<Space>& stream, std::uint64_t seed)
    : stream_(&stream), states_("random states", capacity * sizeof(RandomState)) {
  add("default", seed);
  add("model-parallel", seed + 2718);
  add("expert-parallel", seed + 1024);
}

template <class Space>
void RandomTracker<Space>::add(const std::string& name, std::uint64_t seed) {
  if (std::find(names_.begin(), names_.end(), name) != names_.end())
    throw ConfigurationError("random stream '" + name + "' exists already: choose another name");
  if (names_.size() == capacity)
    throw ConfigurationError("random stream '" + name + "' is one too many: a tracker holds " +
                             std::to_string(capacity));
  const RandomState state{seed, 0};
  stream_->copy_to_device(states_.data() + names_.size() * sizeof(RandomState), &state, sizeof state,
                          "random tracker: new stream");
  stream_->synchronize("random tracker: new stream");
  names_.push_back(name);
}

template <class Space>
const RandomState* RandomTracker<Space>::state(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) {
    std::string known;
    for (const std::string& each : names_) known += (known.empty() ? "" : ", ") + each;
    throw ConfigurationError("no random stream is called '" + std::string(name) + "'; there are " + known);
  }
  return reinterpret_cast<const RandomState*>(states_.data()) + (found - names_.begin());
}

template <class Space>
void RandomTracker<Space>::advance(Stream<Space>& stream) {
  auto* states = reinterpret_cast<RandomState*>(states_.data());
  launch(stream, "encore::random::advance", {write(states, names_.size())},
         Range{static_cast<std::int64_t>(names_.size())}, AdvanceOffsets{states});
}

template <class Space>
std::vector<RandomState> RandomTracker<Space>::snapshot(Stream<Space>& stream) const {
  std::vector<RandomState> states(names_.size());
  stream.copy_to_host(states.data(), states_.data(), states.size() * sizeof(RandomState),
                      "random tracker: snapshot");
  stream.synchronize("random tracker: snapshot");
  return states;
}

template <class Space>
void RandomTracker<Space>::restore(Stream<Space>& stream, const std::vector<RandomState>& states) {
  if (states.size() != names_.size())
    throw ConfigurationError("a snapshot of " + std::to_string(states.size()) +
                             " random streams cannot restore a tracker of " + std::to_string(names_.size()));
  stream.copy_to_device(states_.data(), states.data(), states.size() * sizeof(RandomState),
                        "random tracker: restore");
  stream.synchronize("random tracker: restore");
}

#define ENCORE_INSTANTIATE(SPACE) template class RandomTracker<SPACE>;
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::backend
