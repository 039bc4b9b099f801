// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/recorded_resource.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

namespace encore::backend {

struct RecordedResource::State {
  State(std::string resource, std::function<void()> end)
      : name(std::move(resource)), release(std::move(end)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  /// The last owner, be it the resource or a graph, is gone.
  ~State() {
    try {
      if (!closed) release();
    } catch (const std::exception&) {
      // Whoever wants to know how it ended calls close(); here it may be an exception's way that is being cleared.
    }
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [uses, graph] : graphs) all.push_back(graph);
    return all;
  }

  const std::string name;
  const std::function<void()> release;
  std::atomic<bool> abandoned = false;  ///< the RecordedResource died without close()

  std::mutex mutex;  ///< for what follows
  std::vector<std::pair<const ResourceUses*, std::string>> graphs;
  bool closed = false;
};

namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "'" : ", '") + name + "'";
  return list;
}

}  // namespace

RecordedResource::RecordedResource(std::string name, std::function<void()> release)
    : state_(std::make_shared<State>(std::move(name), std::move(release))) {}

RecordedResource::~RecordedResource() {
  if (state_) state_->abandoned.store(true, std::memory_order_release);
}

const std::string& RecordedResource::name() const { return state_->name; }

std::vector<std::string> RecordedResource::graphs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->names();
}

void RecordedResource::use_in(ResourceUses* recording) const {
  const std::lock_guard lock(state_->mutex);
  if (state_->closed)
    throw CaptureError(
        "'" + state_->name + "' was closed and cannot be used any more" +
        (recording == nullptr ? std::string() : ", but the recording of '" + recording->graph_ + "' does"));
  if (recording == nullptr) return;
  for (const auto& [uses, graph] : state_->graphs)
    if (uses == recording) return;
  // Registered under the same lock: close() cannot come between.
  recording->states_.push_back(state_);
  state_->graphs.emplace_back(recording, recording->graph_);
}

void RecordedResource::close() {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->graphs.empty())
      throw CaptureError("'" + state_->name + "' cannot be closed while graphs that recorded it are alive (" +
                         listed(state_->names()) + "): destroy or reset them first");
    if (std::exchange(state_->closed, true)) return;
  }
  state_->release();
}

ResourceUses::ResourceUses(std::string graph) : graph_(std::move(graph)) {}

ResourceUses::~ResourceUses() {
  for (const auto& state : states_) {
    const std::lock_guard lock(state->mutex);
    std::erase_if(state->graphs, [&](const auto& entry) { return entry.first == this; });
  }
}

void ResourceUses::keep(std::shared_ptr<const void> owned) {
  // The same few are met again and again.
  if (std::find(kept_.begin(), kept_.end(), owned) == kept_.end()) kept_.push_back(std::move(owned));
}

void ResourceUses::check() const {
  for (const auto& state : states_)
    if (state->abandoned.load(std::memory_order_acquire))
      throw CaptureError("graph '" + graph_ + "' cannot be replayed: the owner of '" + state->name +
                         "', which it recorded, has been destroyed");
}

}  // namespace encore::backend
