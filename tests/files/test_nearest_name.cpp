// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <encore/model/files/nearest_name.hpp>
#include <random>
#include <string>

using namespace encore::model;

TEST_CASE("the edit distance counts insertions, deletions, replacements and neighbouring swaps") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("layers", "lyaers") == 1);
  CHECK(edit_distance("layers", "layer") == 1);
  CHECK(edit_distance("ca", "abc") == 3);
}

TEST_CASE("the edit distance is a symmetric measure bounded by the longer length") {
  std::mt19937 random(1);
  auto word = [&] {
    std::string text(random() % 9, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string a = word(), b = word();
    const std::size_t distance = edit_distance(a, b);
    CHECK(distance == edit_distance(b, a));
    CHECK(distance <= std::max(a.size(), b.size()));
    CHECK(distance >= std::max(a.size(), b.size()) - std::min(a.size(), b.size()));
    CHECK((distance == 0) == (a == b));
  }
}

TEST_CASE("the nearest name is found by its last part too, and nothing far away is offered") {
  constexpr std::array<std::string_view, 4> names = {"model.layers", "train.lr", "train.lr_warmup_steps",
                                                     "seed"};
  CHECK(nearest_name("model.layer", names) == "model.layers");
  CHECK(nearest_name("layers", names) == "model.layers");
  CHECK(nearest_name("lr", names) == "train.lr");
  CHECK(nearest_name("train.lr_warmup_step", names) == "train.lr_warmup_steps");
  CHECK(nearest_name("sed", names) == "seed");
  CHECK(nearest_name("colour", names).empty());
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name(std::string(1'000'000, 'x'), names).empty());
  CHECK(did_you_mean("lyaers", names) == " (did you mean 'model.layers'?)");
  CHECK(did_you_mean("zzzzzz", names).empty());
}
