// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

/// Chromium without a window: the program that ENCORE_TEST_BROWSER names, or one that is installed.
class Browser {
 public:
  Browser();

  /// Why there is none; empty: there is.
  const std::string& missing() const { return missing_; }

  /// What the browser's console says about a page; empty when it has nothing to say.
  std::string console(const std::string& page) const;

  /// Opens a copy of the page in a frame of this width, with a script that looks at it: see browser.cpp for what it finds.
  nlohmann::json look(const std::string& page, int width) const;

 private:
  struct Output {
    std::string document;
    std::string log;
  };
  Output open(const std::string& page) const;

  std::string program_;
  std::string missing_;
};
