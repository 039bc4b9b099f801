// SPDX-License-Identifier: Apache-2.0
// The main function of every test program that uses Kokkos. Listing the test cases touches no device, so that a
// machine without one can do it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <encore/backend/error.hpp>
#include <encore/backend/runtime.hpp>

#include <algorithm>
#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const bool lists = std::any_of(argv + 1, argv + argc, [](std::string_view argument) {
    return argument.find("-list-") != std::string_view::npos || argument.starts_with("-l");
  });
  if (lists || context.shouldExit()) return context.run();
  try {
    const encore::backend::Runtime runtime(0, encore::backend::process_rank());  // for tests that are jobs
    return context.run();
  } catch (const encore::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
