// SPDX-License-Identifier: Apache-2.0
#include "kept_tuning.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/atomic_file.hpp>

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace encore::model {

namespace {

constexpr std::uintmax_t most_bytes = 64 << 20;

std::string contents_of(const std::string& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error))
    throw InputFileError(fmt::format("train.tuning_cache = '{}' is not a regular file", file));
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (!error && size > most_bytes)
    throw InputFileError(
        fmt::format("train.tuning_cache = '{}' has {} bytes: that is no tuning cache", file, size));
  std::ifstream stream(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (error || !stream) throw InputFileError(fmt::format("train.tuning_cache = '{}' cannot be read", file));
  return text;
}

}  // namespace

KeptTuning::KeptTuning(const TrainConfiguration& configuration, bool writes)
    : file_(configuration.tuning_cache), writes_(writes) {
  if (configuration.tune_products == ProductTuning::off) return;
  cache_ = std::make_shared<backend::TuningCache>();
  if (file_.empty()) return;
  if (!read())
    note_ = fmt::format("train.tuning_cache = '{}' is of another version's format: it is made anew", file_);
  if (writes_) const AtomicFile probe(file_);
}

bool KeptTuning::read() {
  std::error_code error;
  if (!std::filesystem::exists(file_, error)) return true;
  return cache_->read(contents_of(file_), file_);
}

void KeptTuning::save() {
  if (!cache_ || !writes_ || file_.empty() || cache_->changes() == saved_changes_) return;
  saved_changes_ = cache_->changes();
  try {
    read();
    write_file_atomically(file_, cache_->text());
  } catch (const Error& error) {
    // A training is worth more than its cache.
    note_ = fmt::format("what was measured is not kept: {}", error.what());
  }
}

}  // namespace encore::model
