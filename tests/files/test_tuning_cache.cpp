// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/tuning_cache.hpp>

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <string_view>

#include "mutation.hpp"

using encore::backend::TunedProduct;
using encore::backend::TuningCache;
using encore::backend::TuningMachine;

namespace {

const TuningMachine here{"NVIDIA H200", "cuBLASLt 130300"};
const TuningMachine newer{"NVIDIA H200", "cuBLASLt 130400"};
const TuningMachine elsewhere{"NVIDIA H100 80GB HBM3", "cuBLASLt 130300"};

TuningCache example() {
  TuningCache cache;
  cache.add(here, "matrix product [8, 16] by [16, 32]", {"00ff4200", 12.75});
  cache.add(here, "matrix product [8, 16]^T by [16, 32]", {"00ff4201", 1.0 / 3});
  cache.add(newer, "matrix product [8, 16] by [16, 32]", {"0b", 1e-3});
  cache.add(elsewhere, "matrix product [8, 16] by [16, 32]", {"0c", 4e5});
  return cache;
}

std::string refusal(std::string_view text) {
  TuningCache cache = example();
  const std::string before = cache.text();
  try {
    const bool same_format = cache.read(text, "products.cache");
    CHECK(same_format);
  } catch (const encore::InputFileError& error) {
    CHECK(cache.text() == before);
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a tuning cache finds what was measured with the same GPU and library, and nothing else") {
  const TuningCache cache = example();
  const std::string product = "matrix product [8, 16] by [16, 32]";
  REQUIRE(cache.find(here, product) != nullptr);
  CHECK(*cache.find(here, product) == TunedProduct{"00ff4200", 12.75});
  CHECK(cache.find(newer, product)->algorithm == "0b");
  CHECK(cache.find(here, product + " with bias") == nullptr);
  CHECK(cache.find({"NVIDIA H200", "cuBLASLt 1"}, product) == nullptr);
  CHECK(cache.size() == 4);
  CHECK(cache.size_beside(here) == 2);
  CHECK(cache.size_beside({"no", "such"}) == 4);
}

TEST_CASE("a tuning cache comes back from its text, to the last bit of its times") {
  const TuningCache cache = example();
  TuningCache again;
  CHECK(again.read(cache.text(), "products.cache"));
  CHECK(again.text() == cache.text());
  CHECK(*again.find(here, "matrix product [8, 16]^T by [16, 32]") == TunedProduct{"00ff4201", 1.0 / 3});
  CHECK(again.changes() == 0);
}

TEST_CASE("reading into a tuning cache keeps what was measured since") {
  const std::string product = "matrix product [8, 16] by [16, 32]";
  TuningCache cache;
  cache.add(here, product, {"aa", 1});
  CHECK(cache.changes() == 1);
  CHECK(cache.read(example().text(), "products.cache"));
  CHECK(cache.find(here, product)->algorithm == "aa");
  CHECK(cache.size() == 4);
}

TEST_CASE("a tuning cache of another format is left alone") {
  TuningCache cache;
  CHECK_FALSE(cache.read("encore tuned products 2\nwhatever that means", "products.cache"));
  CHECK(cache.size() == 0);
}

TEST_CASE("an ill-formed tuning cache is refused with its name and line, and adds nothing") {
  const std::string head = "encore tuned products 1\n";
  CHECK(refusal("").find("'products.cache' is damaged: line") != std::string::npos);
  CHECK(refusal("encore tuned products x\n").find("line 1: it must be 'encore tuned products 1'") !=
        std::string::npos);
  CHECK(refusal("encore tuned products 0\n").find("line 1") != std::string::npos);
  CHECK(refusal("encore tuned products 1").find("ends within the line") != std::string::npos);
  CHECK(refusal(head + "a\tb\tc\t00\n").find("line 2: it must have 5 fields") != std::string::npos);
  CHECK(refusal(head + "a\tb\tc\t00\t1\t\n").find("5 fields") != std::string::npos);
  CHECK(refusal(head + "a\tb\tc\t00\t1\na\t\td\t00\t1\n").find("line 3: a name is empty") !=
        std::string::npos);
  CHECK(refusal(head + "a\x7f\tb\tc\t00\t1\n").find("not plain ASCII") != std::string::npos);
  for (const char* algorithm : {"", "0", "0g", "0A", "zz"})
    CHECK(refusal(head + "a\tb\tc\t" + algorithm + "\t1\n").find("hexadecimal") != std::string::npos);
  for (const char* time : {"", "0", "-1", "nan", "inf", "1e400", "1us"})
    CHECK(refusal(head + "a\tb\tc\t00\t" + time + "\n").find("microseconds") != std::string::npos);
  CHECK(refusal(head + "a\tb\tc\t00\t1\na\tb\tc\t01\t1\n").find("line 3: the product has an entry already") !=
        std::string::npos);
  CHECK(refusal(head + "a\tb\tc\t00\t1").find("ends within the line") != std::string::npos);
  CHECK(refusal(head + "a\tb\tc\t00\t1\n").empty());
}

TEST_CASE("what a tuning cache could not read again is not put into it") {
  TuningCache cache;
  CHECK_THROWS_AS(cache.add(here, "a\tb", {"00", 1}), encore::InternalError);
  CHECK_THROWS_AS(cache.add(here, "a", {"0", 1}), encore::InternalError);
  CHECK_THROWS_AS(cache.add(here, "a", {"00", 0}), encore::InternalError);
  CHECK_THROWS_AS(cache.add({"", "b"}, "a", {"00", 1}), encore::InternalError);
  CHECK(cache.size() == 0);
}

TEST_CASE("damaged tuning caches are refused or are consistent") {
  constexpr std::array<std::string_view, 9> words = {
      "\t", "\n", "encore tuned products 1\n", "nan", "1e308", "0x1", "-1.", "18446744073709551616", "\xff"};
  const std::string whole = example().text();
  Mutation mutation(31, words);
  int accepted = 0;
  const int rounds = fuzz_rounds();
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    const std::string damaged = mutation.of(whole);
    TuningCache cache;
    try {
      if (!cache.read(damaged, "f")) continue;
    } catch (const encore::InputFileError& error) {
      CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
      CHECK(cache.size() == 0);
      continue;
    }
    ++accepted;
    TuningCache again;
    CHECK(again.read(cache.text(), "again"));
    CHECK(again.text() == cache.text());
  }
  CHECK(accepted > rounds / 100);
  CHECK(accepted < rounds * 9 / 10);
}
