// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>
#include <encore/kernels/dispatch.hpp>

#include "kernel_run.hpp"
#include "tolerance.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace encore::tests {

/// Experts of each token, -1 for none, and how much room there is for their rows.
struct Routing {
  std::string name;
  std::int64_t tokens, topk, experts, capacity, rows;
  std::vector<std::int32_t> chosen{};

  /// K different experts of each token.
  void draw(unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<std::int32_t> all(experts);
    std::iota(all.begin(), all.end(), 0);
    chosen.clear();
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::shuffle(all.begin(), all.end(), generator);
      chosen.insert(chosen.end(), all.begin(), all.begin() + topk);
    }
  }
};

/// Where dispatch must put the pairs, found one pair after the other.
struct ReferenceRows {
  std::vector<std::int32_t> begins, ends, source, row_of;
  std::int32_t needed;

  explicit ReferenceRows(const Routing& routing)
      : begins(routing.experts),
        ends(routing.experts),
        source(routing.rows, -1),
        row_of(routing.chosen.size(), -1) {
    std::vector<std::vector<std::int32_t>> pairs(routing.experts);
    for (std::size_t i = 0; i < routing.chosen.size(); ++i)
      if (routing.chosen[i] >= 0) pairs[routing.chosen[i]].push_back(static_cast<std::int32_t>(i));
    std::int64_t next = 0, most = 0, all = 0;
    for (std::int64_t e = 0; e < routing.experts; ++e) {
      if (routing.capacity > 0) next = e * routing.capacity;
      const std::int64_t limit =
          routing.capacity > 0 ? std::min(routing.rows, next + routing.capacity) : routing.rows;
      begins[e] = static_cast<std::int32_t>(std::min(next, routing.rows));
      for (const std::int32_t pair : pairs[e]) {
        if (next < limit) {
          source[next] = pair;
          row_of[pair] = static_cast<std::int32_t>(next);
        }
        ++next;
      }
      ends[e] = static_cast<std::int32_t>(std::min(next, limit));
      most = std::max<std::int64_t>(most, pairs[e].size());
      all += pairs[e].size();
    }
    needed = static_cast<std::int32_t>(routing.capacity > 0 ? most * routing.experts : all);
  }
};

/// Random routings and the adversarial ones: all pairs at one expert, experts without any, one token, padding,
/// too few rows and too little capacity, and more pairs than a tile or all tiles of one chunk hold.
inline std::vector<Routing> routing_cases() {
  std::vector<Routing> all{{"one pair", 1, 1, 1, 0, 1},         {"one token", 1, 3, 7, 0, 5},
                           {"exact", 40, 2, 8, 0, 80},          {"spare rows", 37, 4, 16, 0, 200},
                           {"too few rows", 50, 3, 5, 0, 101},  {"no rows", 20, 2, 4, 0, 0},
                           {"wide", 100, 8, 300, 0, 900},       {"several chunks", 300, 4, 12, 0, 1200},
                           {"capacity", 64, 2, 8, 16, 128},     {"tight capacity", 90, 3, 6, 11, 70},
                           {"wide capacity", 30, 2, 9, 50, 450}};
  for (Routing& routing : all) routing.draw(3);
  for (const std::int64_t capacity : {0, 20}) {
    Routing one{"all at one expert", 90, 1, 6, capacity, 120};
    one.chosen.assign(90, 4);
    all.push_back(one);
    Routing two{"padding and empty experts", 75, 2, 10, capacity, 200};
    two.draw(4);
    for (std::int64_t t = 0; t < 75; ++t)
      for (int k = 0; k < 2; ++k)
        two.chosen[2 * t + k] = t % 5 < 2                        ? -1
                                : two.chosen[2 * t + k] % 3 == 0 ? 9
                                                                 : two.chosen[2 * t + k] % 3 * 2;
    all.push_back(two);
    Routing none{"no live token", 12, 2, 4, capacity, 100};
    none.chosen.assign(24, -1);
    all.push_back(none);
  }
  Routing many{"tiles of many chunks", 23000, 3, 130, 0, 69000};
  many.draw(5);
  std::fill_n(many.chosen.begin() + 3000, 30000, 129);
  all.push_back(many);
  many.name = "tiles of many chunks, capacity";
  many.capacity = 300;
  all.push_back(many);
  Routing lone{"more pairs than one team places", 700, 3, 128, 0, 2200};
  lone.draw(6);
  all.push_back(lone);
  lone.name = "as many pairs as one team places";
  lone.tokens = 1024;
  lone.topk = 2;
  lone.draw(7);
  std::fill_n(lone.chosen.begin() + 700, 900, 127);
  all.push_back(lone);
  return all;
}

/// Arrays that dispatch writes, all as outputs of a run.
template <class Space>
kernels::ExpertRows<Space> output_rows(KernelRun<Space>& run, const Routing& routing) {
  return {run.template output<std::int32_t>(routing.experts),
          run.template output<std::int32_t>(routing.experts), run.template output<std::int32_t>(routing.rows),
          run.template output<std::int32_t>(routing.tokens, routing.topk),
          run.template output<std::int32_t>(1).data()};
}

/// The reference's rows as inputs of a run, for the kernels behind dispatch.
template <class Space>
kernels::ExpertRows<Space> input_rows(KernelRun<Space>& run, const Routing& routing) {
  const ReferenceRows rows(routing);
  return {run.template in_out<std::int32_t>(rows.begins), run.template in_out<std::int32_t>(rows.ends),
          run.template in_out<std::int32_t>(rows.source),
          run.template in_out<std::int32_t>(rows.row_of, routing.topk), nullptr};
}

/// `values` of a [rows, columns] array with NaN in each row without a source.
inline std::vector<double> poisoned(const Routing& routing, std::vector<double> values,
                                    std::int64_t columns) {
  const ReferenceRows rows(routing);
  for (std::int64_t r = 0; r < routing.rows; ++r)
    if (rows.source[r] < 0) std::fill_n(values.begin() + r * columns, columns, std::nan(""));
  return values;
}

/// Splits results into those of rows with a source and the others, of which each must still be the NaN that was
/// there before.
inline void check_rows(const Routing& routing, const std::vector<double>& result,
                       const std::vector<double>& expected, std::int64_t columns, Tolerance allowed) {
  const ReferenceRows rows(routing);
  std::vector<double> real, real_expected;
  bool others_stand = true;
  for (std::int64_t r = 0; r < routing.rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      if (rows.source[r] < 0) {
        others_stand = others_stand && std::isnan(result[r * columns + c]);
      } else {
        real.push_back(result[r * columns + c]);
        real_expected.push_back(expected[r * columns + c]);
      }
    }
  }
  CHECK(others_stand);
  check_close(real, real_expected, allowed);
}

}  // namespace encore::tests
