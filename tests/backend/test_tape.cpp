// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/tape.hpp>

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace {

using namespace encore::backend;

struct Step {
  std::vector<std::int64_t>* target;
  const std::vector<std::int64_t>* source;
  std::int64_t factor;
};

void run_step(const void* functor, std::int64_t begin, std::int64_t end, std::size_t) {
  const Step& step = *static_cast<const Step*>(functor);
  // Reads across the whole source, so that a missing barrier shows.
  const auto size = static_cast<std::int64_t>(step.source->size());
  for (std::int64_t i = begin; i < end; ++i)
    (*step.target)[i] = (*step.source)[size - 1 - i] * step.factor + (*step.source)[(i * 7 + 3) % size] + i;
}

Access range_of(const std::vector<std::int64_t>& values, bool writes) {
  Access access = read(values.data(), values.size());
  access.writes = writes;
  return access;
}

void append(Tape& tape, const Step& step) {
  tape.append("step", {range_of(*step.source, false), range_of(*step.target, true)},
              static_cast<std::int64_t>(step.target->size()), 0, &run_step, step);
}

TEST_CASE("kernels that touch different memory need no barrier between them") {
  std::vector<std::int64_t> a(8), b(8), c(8), d(8);
  Tape tape;
  append(tape, {&a, &b, 1});
  append(tape, {&c, &d, 1});
  CHECK(tape.barriers() == 0);
  append(tape, {&d, &a, 1});  // reads a, and writes d, which the second read
  CHECK(tape.barriers() == 1);
}

TEST_CASE("readers of the same memory need no barrier between them") {
  std::vector<std::int64_t> a(8), b(8), c(8);
  Tape tape;
  append(tape, {&a, &c, 1});
  append(tape, {&b, &c, 1});
  CHECK(tape.barriers() == 0);
}

TEST_CASE("overlapping parts of one array conflict and neighbouring parts do not") {
  std::vector<std::int64_t> array(10);
  const std::int64_t* data = array.data();
  CHECK(conflict(write(data, 5), read(data + 4, 2)));
  CHECK(conflict(write(data, 5), write(data + 4, 2)));
  CHECK(!conflict(write(data, 5), write(data + 5, 5)));
  CHECK(!conflict(read(data, 5), read(data, 5)));
}

TEST_CASE("a kernel that does not say what it touches is kept apart from all others") {
  std::vector<std::int64_t> a(8), b(8), c(8), d(8);
  Tape tape;
  append(tape, {&a, &b, 1});
  tape.append("unknown", {}, 1, 0, &run_step, Step{&a, &b, 1});
  append(tape, {&c, &d, 1});
  CHECK(tape.barriers() == 2);
}

TEST_CASE("random chains replay on any number of threads as they run in order") {
  std::mt19937 generator(7);
  for (int round = 0; round < 50; ++round) {
    constexpr std::size_t arrays = 5;
    std::vector<std::vector<std::int64_t>> in_order(arrays, std::vector<std::int64_t>(61)), replayed;
    for (auto& array : in_order)
      for (auto& value : array) value = static_cast<std::int64_t>(generator() % 100);
    replayed = in_order;
    Tape tape;
    for (int kernel = 0; kernel < 40; ++kernel) {
      const std::size_t target = generator() % arrays,
                        source = (target + 1 + generator() % (arrays - 1)) % arrays;
      const std::int64_t factor = static_cast<std::int64_t>(generator() % 3);
      const Step step{&in_order[target], &in_order[source], factor};
      run_step(&step, 0, 61, 0);
      append(tape, {&replayed[target], &replayed[source], factor});
    }
    tape.replay(1 + round % 4);
    CHECK(replayed == in_order);
  }
}

TEST_CASE("each replay runs each item once, also when there are fewer threads than asked for") {
  std::vector<int> counts(1003, 0);
  const auto count = [](const void* functor, std::int64_t begin, std::int64_t end, std::size_t) {
    int* data = *static_cast<int* const*>(functor);
    for (std::int64_t i = begin; i < end; ++i) ++data[i];
  };
  Tape tape;
  tape.append("count", {write(counts.data(), counts.size())}, 1003, 0, count, counts.data());
  tape.append("count", {write(counts.data(), counts.size())}, 1003, 0, count, counts.data());
  int runs = 0;
  for (const int threads : {1, 2, 3, 7, 2}) {
    tape.replay(threads);
    CHECK(counts == std::vector<int>(1003, 2 * ++runs));
  }
#pragma omp parallel num_threads(2)
#pragma omp single
  tape.replay(4);  // a nested region: one thread
  CHECK(counts == std::vector<int>(1003, 2 * ++runs));
}

}  // namespace
