// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/tape.hpp>

#include <doctest/doctest.h>

#include <random>
#include <stdexcept>
#include <string>
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

TEST_CASE("random programs replay on any number of threads as they run in order") {
  std::mt19937 generator(7);
  for (int round = 0; round < 40; ++round) {
    constexpr std::size_t arrays = 5;
    const std::size_t size = round % 4 == 0 ? 5000 : 61;
    std::vector<std::vector<std::int64_t>> in_order(arrays, std::vector<std::int64_t>(size)), replayed;
    for (auto& array : in_order)
      for (auto& value : array) value = static_cast<std::int64_t>(generator() % 100);
    replayed = in_order;
    Tape tape;
    std::vector<Step> steps;
    for (int kernel = 0; kernel < 40; ++kernel) {
      const std::size_t target = generator() % arrays,
                        source = (target + 1 + generator() % (arrays - 1)) % arrays;
      const std::int64_t factor = static_cast<std::int64_t>(generator() % 3);
      steps.push_back({&in_order[target], &in_order[source], factor});
      append(tape, {&replayed[target], &replayed[source], factor});
    }
    // Enough replays for the tape to measure, to try its plans, and to use the one it chose.
    for (int replay = 0; replay < 16; ++replay) {
      for (const Step& step : steps) run_step(&step, 0, static_cast<std::int64_t>(step.target->size()), 0);
      tape.replay(1 + round % 4);
      CHECK(replayed == in_order);
    }
  }
}

struct Mix {
  std::vector<std::int64_t>* memory;
  std::int64_t read_begin, read_end, write_begin, write_end;
};

/// Each written number depends on all that are read and on its own old value.
void run_mix(const void* functor, std::int64_t begin, std::int64_t end, std::size_t) {
  const Mix& mix = *static_cast<const Mix*>(functor);
  std::int64_t sum = 1;
  for (std::int64_t i = mix.read_begin; i < mix.read_end; ++i) sum = sum * 31 + (*mix.memory)[i];
  for (std::int64_t i = begin; i < end; ++i)
    (*mix.memory)[mix.write_begin + i] = (*mix.memory)[mix.write_begin + i] * 7 + sum + i;
}

TEST_CASE("random access ranges within one array replay on any number of threads as they run in order") {
  constexpr std::int64_t places = 96;
  std::mt19937 generator(11);
  const auto below = [&](std::int64_t limit) { return static_cast<std::int64_t>(generator()) % limit; };
  for (int round = 0; round < 40; ++round) {
    std::vector<std::int64_t> in_order(places, round), replayed = in_order;
    Tape tape;
    std::vector<Mix> mixes;
    while (mixes.size() < 60) {
      const std::int64_t write_begin = below(places - 20), write_end = write_begin + 1 + below(20);
      const std::int64_t read_begin = below(places - 20), read_end = read_begin + below(20);
      if (read_begin < write_end && write_begin < read_end) continue;  // A kernel's items are independent.
      mixes.push_back({&in_order, read_begin, read_end, write_begin, write_end});
      Mix mix = mixes.back();
      mix.memory = &replayed;
      tape.append("mix",
                  {read(replayed.data() + read_begin, static_cast<std::size_t>(read_end - read_begin)),
                   write(replayed.data() + write_begin, static_cast<std::size_t>(write_end - write_begin))},
                  write_end - write_begin, 0, &run_mix, mix);
    }
    for (int replay = 0; replay < 16; ++replay) {
      for (const Mix& mix : mixes) run_mix(&mix, 0, mix.write_end - mix.write_begin, 0);
      tape.replay(1 + round % 4);
      CHECK(replayed == in_order);
    }
  }
}

/// Counts how often each item runs.
struct Counts {
  explicit Counts(std::size_t items) : counts(items, 0) {
    const auto count = [](const void* functor, std::int64_t begin, std::int64_t end, std::size_t) {
      int* data = *static_cast<int* const*>(functor);
      for (std::int64_t i = begin; i < end; ++i) ++data[i];
    };
    for (int kernel = 0; kernel < 2; ++kernel)
      tape.append("count", {write(counts.data(), items)}, static_cast<std::int64_t>(items), 0, count,
                  counts.data());
  }
  void replay(int threads) {
    tape.replay(threads);
    CHECK(counts == std::vector<int>(counts.size(), 2 * ++runs));
  }

  std::vector<int> counts;
  Tape tape;
  int runs = 0;
};

TEST_CASE("each replay runs each item once, whatever the number of threads was before") {
  for (const std::size_t items : {1, 2, 1003, 2000003}) {
    Counts counts(items);
    for (const int threads : {1, 2, 2, 3, 7, 2})
      for (int replay = 0; replay < 14; ++replay) counts.replay(threads);
  }
}

TEST_CASE("each replay runs each item once where OpenMP grants one thread only") {
  Counts counts(100003);
  for (int replay = 0; replay < 14; ++replay) {
    counts.replay(4);
#pragma omp parallel num_threads(2)
#pragma omp single
    counts.replay(4);  // A nested region has one thread.
  }
}

TEST_CASE("each replay runs each item once where OpenMP grants fewer threads than asked for") {
  Counts counts(100003);
#if defined(_OPENMP) && _OPENMP >= 201307
#pragma omp teams num_teams(1) thread_limit(3)
#endif
  for (int replay = 0; replay < 30; ++replay) counts.replay(4);
  for (int replay = 0; replay < 14; ++replay) counts.replay(4);
}

TEST_CASE("what a kernel throws reaches the caller, and the tape can be replayed again") {
  struct Failing {
    const bool* fails;
    std::vector<int>* counts;
  };
  const auto run = [](const void* functor, std::int64_t begin, std::int64_t end, std::size_t) {
    const Failing& failing = *static_cast<const Failing*>(functor);
    for (std::int64_t i = begin; i < end; ++i) {
      if (i == 700 && *failing.fails) throw std::runtime_error("item 700");
      ++(*failing.counts)[static_cast<std::size_t>(i)];
    }
  };
  for (int good = 0; good < 14; ++good) {
    std::vector<int> counts(1000, 0);
    bool fails = false;
    Tape tape;
    for (int kernel = 0; kernel < 3; ++kernel)
      tape.append("failing", {write(counts.data(), 1000)}, 1000, 0, run, Failing{&fails, &counts});
    for (int replay = 0; replay < good; ++replay) tape.replay(2);
    fails = true;
    CHECK_THROWS_WITH_AS(tape.replay(2), "item 700", std::runtime_error);
    fails = false;
    counts.assign(1000, 0);
    tape.replay(2);
    CHECK(counts == std::vector<int>(1000, 3));
  }
}

TEST_CASE("a tape knows its labels and its bytes") {
  std::vector<std::int64_t> a(8), b(8);
  Tape tape;
  const std::size_t empty = tape.bytes();
  append(tape, {&a, &b, 1});
  tape.append("other", {}, 1, 0, &run_step, Step{&a, &b, 1});
  CHECK(tape.labels() == std::vector<std::string>{"step", "other"});
  CHECK(tape.bytes() >= empty + 2 * sizeof(Step));
  tape.replay(1);
  CHECK_THROWS_AS(append(tape, {&a, &b, 1}), encore::InternalError);
}

}  // namespace
