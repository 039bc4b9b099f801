// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace {

/// Numbers that follow "case " at the beginning of test names: "case 23 and 28: ..." holds two.
void collect(const std::string& text, std::set<int>& cases) {
  for (std::size_t at = text.find("\"case "); at != std::string::npos; at = text.find("\"case ", at + 1)) {
    const std::size_t end = text.find(':', at);
    std::istringstream words(text.substr(at + 6, end - at - 6));
    for (std::string word; words >> word;)
      if (word.find_first_not_of("0123456789") == std::string::npos) cases.insert(std::stoi(word));
  }
}

TEST_CASE("each of the thirty public complaints about graph capture has a test of its name") {
  std::set<int> cases;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ENCORE_TEST_SOURCE "/tests")) {
    if (entry.path().extension() != ".cpp" || entry.path().filename() == "test_case_coverage.cpp") continue;
    std::ifstream file(entry.path());
    std::stringstream text;
    text << file.rdbuf();
    collect(text.str(), cases);
  }
  for (int number = 1; number <= 30; ++number) {
    CAPTURE(number);
    CHECK(cases.contains(number));
  }
}

}  // namespace
