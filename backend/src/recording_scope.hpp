// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/recorded_resource.hpp>
#include <encore/backend/stream.hpp>

#include <string>
#include <vector>

namespace encore::backend::impl {

/// While it lives, what is recorded on a stream notes its labels and resources. Who collected labels before gets
/// them too.
template <class Space>
class RecordingScope {
 public:
  RecordingScope(Stream<Space>& stream, std::vector<std::string>& labels, ResourceUses& uses)
      : stream_(stream),
        labels_(labels),
        collector_(stream.label_collector()),
        uses_(stream.resource_uses()) {
    stream.collect_labels(&labels);
    stream.set_resource_uses(&uses);
  }
  ~RecordingScope() {
    stream_.collect_labels(collector_);
    stream_.set_resource_uses(uses_);
    if (collector_ != nullptr) collector_->insert(collector_->end(), labels_.begin(), labels_.end());
  }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

  /// Between priming and recording, which call the same body.
  void drop_labels() {
    if (collector_ != nullptr) collector_->insert(collector_->end(), labels_.begin(), labels_.end());
    labels_.clear();
  }

 private:
  Stream<Space>& stream_;
  std::vector<std::string>& labels_;
  std::vector<std::string>* collector_;
  ResourceUses* uses_;
};

}  // namespace encore::backend::impl
