// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "temporary_folder.hpp"

/// A folder with a configuration of a model so small that a run of a few steps takes no time.
class TinyModel {
 public:
  TinyModel() {
    write_bytes(folder / "tiny.json", R"({
      "model": {"family": "llama", "layers": 2, "hidden": 16, "heads": 2, "ffn": 32, "vocab": 256, "seq": 16,
                "dropout": 0.1},
      "train": {"steps": 8, "microbatch": 2, "lr": 0.01, "lr_decay_steps": 8, "min_lr": 0.001},
      "backend": "serial"
    })");
  }

  std::string path(const std::string& name) const { return (folder / name).string(); }

  /// The arguments of `encore train` for this model, and more.
  std::vector<std::string> train(const std::vector<std::string>& more = {}) const {
    return arguments("train", more);
  }
  /// The same for another command.
  std::vector<std::string> arguments(const std::string& command,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{command, "--config", path("tiny.json")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TemporaryFolder folder;
};
