// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/tuning_cache.hpp>
#include <encore/model/files/configuration.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace encore::model {

/// The file of train.tuning_cache.
class KeptTuning {
 public:
  /// Reads the file if there is one, and finds out whether it could be written. Of several ranks one alone writes.
  /// Throws InputFileError, OutputFileError.
  KeptTuning(const TrainConfiguration& configuration, bool writes);

  const std::shared_ptr<backend::TuningCache>& cache() const { return cache_; }
  /// Writes what was added since, together with what another process has written meanwhile.
  void save();
  /// What is to be said about the file; empty: nothing.
  const std::string& note() const { return note_; }

 private:
  bool read();

  std::string file_;
  bool writes_;
  std::shared_ptr<backend::TuningCache> cache_;
  std::size_t saved_changes_ = 0;
  std::string note_;
};

}  // namespace encore::model
