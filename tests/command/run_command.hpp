// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What became of a run of the command.
struct Outcome {
  int code = -1;   ///< exit code; -1 when a signal ended it
  int signal = 0;  ///< the signal that ended it
  std::string output;
  std::string error;
};

struct Surroundings {
  std::optional<std::uint64_t> largest_file;  ///< bytes; a limit that acts like a full disk
  std::filesystem::path output;               ///< where standard output goes, instead of into the outcome
  std::vector<std::string> environment = {};  ///< NAME=value, beside what there is
};

/// Runs the built command with these arguments, at most 120 seconds long.
Outcome encore(const std::vector<std::string>& arguments, const Surroundings& surroundings = {});

/// A run that goes on while the test does something to it.
class BackgroundRun {
 public:
  BackgroundRun(const std::vector<std::string>& arguments, const Surroundings& surroundings = {});
  ~BackgroundRun();
  BackgroundRun(const BackgroundRun&) = delete;
  BackgroundRun& operator=(const BackgroundRun&) = delete;

  void send(int signal) const;
  /// Closes the reading end of its standard output, as `head` does.
  void close_output();
  Outcome wait();

 private:
  int process_ = -1;
  int output_ = -1;
  int error_ = -1;
};

/// Checks that the run was refused with this exit code and exactly one line on standard error, which begins with
/// `encore: ` and holds all the words.
void check_refused(const Outcome& outcome, int code, std::initializer_list<std::string_view> words);

/// The lines of a text, without their ends.
std::vector<std::string> lines_of(const std::string& text);
