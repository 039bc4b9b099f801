// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/bfloat16.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace {

using encore::backend::bfloat16;

TEST_CASE("every bfloat16 survives a round trip through float") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    bfloat16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const float wide = value;
    if (std::isnan(wide)) {
      CHECK(std::isnan(float(bfloat16(wide))));
    } else {
      CHECK(bfloat16(wide).bits == bits);
    }
  }
}

TEST_CASE("rounding to bfloat16 goes to the nearest, and to even half way between") {
  CHECK(bfloat16(1.0F).bits == 0x3f80);
  CHECK(bfloat16(1.00390625F).bits == 0x3f80);  // half way, down to even
  CHECK(bfloat16(1.01171875F).bits == 0x3f82);  // half way, up to even
  CHECK(bfloat16(1.0039064F).bits == 0x3f81);   // just above half way
  CHECK(bfloat16(-1.01171875F).bits == 0xbf82);
  CHECK(std::isinf(float(bfloat16(std::numeric_limits<float>::max()))));
  CHECK(std::isnan(float(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
