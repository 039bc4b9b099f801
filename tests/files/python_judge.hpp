// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "temporary_folder.hpp"

/// Runs Python programs that judge the library's files by other implementations. The interpreter is the one
/// that ENCORE_TEST_PYTHON names, or python3.
class PythonJudge {
 public:
  struct Answer {
    int status;
    std::string output;  ///< standard output and standard error
  };

  /// Whether the interpreter can import the modules ("numpy, safetensors").
  bool has(const std::string& modules) const { return run("import " + modules).status == 0; }

  Answer run(const std::string& program, const std::string& arguments = {}) const {
    const TemporaryFolder folder;
    write_bytes(folder / "program.py", program);
    const char* const interpreter = std::getenv("ENCORE_TEST_PYTHON");
    const std::string command = std::string(interpreter != nullptr ? interpreter : "python3") + " '" +
                                (folder / "program.py").string() + "' " + arguments + " 2>&1";
    FILE* const pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return {-1, {}};
    std::string output;
    std::array<char, 4096> part{};
    for (std::size_t count = 0; (count = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
      output.append(part.data(), count);
    return {::pclose(pipe), output};
  }
};
