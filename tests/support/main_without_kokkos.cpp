// SPDX-License-Identifier: Apache-2.0
// The main function of test programs that use no Kokkos.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
