// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/graph_rules.hpp>

#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "temporary_folder.hpp"

namespace {

/// Line by line: the whole page would drown the difference.
void check_page(const std::string& name, const std::string& written) {
  std::istringstream page{read_bytes(ENCORE_TEST_SOURCE "/docs/" + name)}, code{written};
  for (std::string in_page, in_code; page && code;) {
    std::getline(page, in_page);
    std::getline(code, in_code);
    REQUIRE(in_page == in_code);
    REQUIRE(page.eof() == code.eof());
  }
}

}  // namespace

TEST_CASE("docs/refusals.md is what the code says") {
  INFO("write it anew: encore info --rules > docs/refusals.md");
  check_page("refusals.md", encore::model::graph_rules_as_markdown());
}

TEST_CASE("docs/configuration.md is what the code says") {
  INFO("write it anew: encore info --keys --markdown > docs/configuration.md");
  check_page("configuration.md", encore::model::configuration_keys_as_markdown());
}
