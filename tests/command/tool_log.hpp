// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "run_command.hpp"
#include "temporary_folder.hpp"

/// Sets a variable of the environment while it lives.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~EnvironmentVariable() { ::unsetenv(name_); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  const char* name_;
};

/// The regions that a tool saw, each with the names of those around it, as `outer > inner`, and the kernels in them.
struct ToolLog {
  std::vector<std::string> regions;
  std::vector<std::string> kernels;  ///< `region > kernel`
  std::vector<std::string> copies;
  bool balanced = true;  ///< every region, kernel and copy was closed, by its own number and in order
  bool ended = false;

  explicit ToolLog(const std::string& file) {
    std::vector<std::string> open;
    std::string kernel;
    bool copying = false;
    for (const std::string& line : lines_of(read_bytes(file))) {
      const std::string word = line.substr(0, line.find(' '));
      const std::string rest = line.size() > word.size() ? line.substr(word.size() + 1) : "";
      if (word == "push") {
        open.push_back((open.empty() ? "" : open.back() + " > ") + rest);
        regions.push_back(open.back());
      } else if (word == "pop") {
        balanced = balanced && !open.empty() && kernel.empty();
        if (!open.empty()) open.pop_back();
      } else if (word == "kernel") {
        balanced = balanced && kernel.empty();
        kernel = rest.substr(0, rest.find(' '));
        const std::string name = rest.substr(kernel.size() + 1);
        kernels.push_back((open.empty() ? "" : open.back() + " > ") + name);
      } else if (word == "over") {
        balanced = balanced && kernel == rest;
        kernel.clear();
      } else if (word == "copy") {
        copies.push_back(rest);
        balanced = balanced && !copying;
        copying = true;
      } else if (word == "copied") {
        balanced = balanced && copying;
        copying = false;
      } else if (word == "end") {
        ended = true;
      }
    }
    balanced = balanced && open.empty() && kernel.empty() && !copying;
  }

  std::ptrdiff_t count(const std::string& region) const { return std::ranges::count(regions, region); }
  std::ptrdiff_t count_kernels(const std::string& kernel) const {
    return std::ranges::count(kernels, kernel);
  }
};
