// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#ifndef ENCORE_TEST_SOURCE
#define ENCORE_TEST_SOURCE "."
#endif

/// A reference file made by Hugging Face transformers, from the folder that ENCORE_GOLDENS names or the one
/// that is laid beside the source tree; none if there is no such file.
inline std::optional<std::filesystem::path> golden_file(const std::string& name) {
  const char* const folder = std::getenv("ENCORE_GOLDENS");
  const std::filesystem::path path =
      (folder != nullptr ? std::filesystem::path(folder) : ENCORE_TEST_SOURCE "/../shared/goldens") / name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}
