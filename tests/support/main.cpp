// SPDX-License-Identifier: Apache-2.0
// The main function of every test program that uses Kokkos. Listing test cases needs no device.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <Kokkos_Core.hpp>

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (context.shouldExit()) return context.run();
  Kokkos::ScopeGuard kokkos;
  return context.run();
}
