// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <thread>

#include "run_command.hpp"
#include "tiny_model.hpp"

// A run is killed, started again from its last checkpoint (or anew where there is none), killed again, and so on,
// until it ends: checkpoint and log must be those of a run that nobody disturbed.

namespace {

using Strings = std::vector<std::string>;

constexpr int steps = 1200;
constexpr int interval = 30;

/// What decides the numbers of each step of a log, without what depends on the clock and on the graphs.
std::string numbers_of(const std::string& log) {
  std::string numbers;
  for (const std::string& line : lines_of(log)) {
    const auto step = nlohmann::json::parse(line);
    for (const char* const key : {"step", "loss", "grad_norm", "lr"}) numbers += step[key].dump() + ' ';
    numbers += '\n';
  }
  return numbers;
}

/// One training with files of its own, which survives being killed.
class Training {
 public:
  explicit Training(Strings settings) : settings_(std::move(settings)) {}

  std::string model() const { return tiny_.path("model.safetensors"); }
  std::string log() const { return tiny_.path("run.jsonl"); }

  Strings arguments() const {
    Strings arguments =
        tiny_.train({"--steps", std::to_string(steps), "--save", model(), "--log", log(), "--no-verdict",
                     "--threads", "1", "--set", "train.lr_decay_steps=" + std::to_string(steps), "--set",
                     "train.checkpoint_interval=" + std::to_string(interval)});
    for (const std::string& setting : settings_) arguments.insert(arguments.end(), {"--set", setting});
    if (std::filesystem::exists(model())) arguments.insert(arguments.end(), {"--load", model()});
    return arguments;
  }

  std::ptrdiff_t lines_written() const {
    std::error_code error;
    if (!std::filesystem::exists(log() + ".partial", error)) return 0;
    const std::string text = read_bytes(log() + ".partial");
    return std::ranges::count(text, '\n');
  }

  bool checkpoint_under_way() const {
    std::error_code error;
    return std::filesystem::exists(model() + ".partial", error);
  }

  void finish() const {
    const Outcome outcome = encore(arguments());
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
    CHECK_FALSE(std::filesystem::exists(log() + ".partial"));
    CHECK_FALSE(checkpoint_under_way());
  }

 private:
  TinyModel tiny_;
  Strings settings_;
};

/// Starts the training and kills it once `moment` says so. False if it came to its end before.
bool kill_when(const Training& training, const std::function<bool()>& moment) {
  BackgroundRun run(training.arguments());
  for (int tries = 0; tries < 300'000 && !moment(); ++tries) {
    if (std::filesystem::exists(training.log())) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  run.send(SIGKILL);
  const Outcome outcome = run.wait();
  CHECK((outcome.signal == SIGKILL || outcome.code == 0));
  return outcome.signal == SIGKILL;
}

struct Files {
  std::string model;
  std::string numbers;
};

Files files_of(const Training& training) {
  return {read_bytes(training.model()), numbers_of(read_bytes(training.log()))};
}

/// Graphs do not change numbers: one undisturbed training is the reference of all these.
const std::vector<Strings>& same_numbers() {
  static const std::vector<Strings> settings = {
      {"graph.impl=full_iteration"},
      {"graph.impl=none"},
      {"graph.impl=layer", "graph.modules=attn"},
      {"graph.impl=layer", "graph.warmup_steps=0"},
      {"graph.impl=full_iteration", "graph.optimizer=separate", "graph.validate_every=17"},
      {"backend=serial", "graph.checksums=true"}};
  return settings;
}

const Files& undisturbed() {
  static const Files files = [] {
    const Training training({"graph.impl=full_iteration"});
    training.finish();
    return files_of(training);
  }();
  return files;
}

void check_undisturbed(const Training& training, const Files& expected) {
  const Files files = files_of(training);
  CHECK(files.model == expected.model);
  CHECK(files.numbers == expected.numbers);
}

}  // namespace

TEST_CASE("a run that is killed at a random moment resumes to the bits of one that was not") {
  std::mt19937 random(5);
  int killed = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const Strings& settings = same_numbers()[i % same_numbers().size()];
    CAPTURE(settings.front());
    const Training training(settings);
    const auto after_step = static_cast<std::ptrdiff_t>(random() % (steps * 2 / 3));
    const std::chrono::microseconds later(random() % 5000);
    CAPTURE(after_step);
    killed += kill_when(training, [&] {
      if (training.lines_written() < after_step) return false;
      std::this_thread::sleep_for(later);
      return true;
    });
    training.finish();
    check_undisturbed(training, undisturbed());
  }
  CHECK(killed >= 4);  // on a busy machine some runs come to their end first
}

TEST_CASE("a run that is killed again and again, before its first checkpoint too, ends with the same bits") {
  std::mt19937 random(6);
  const Training training({"graph.impl=full_iteration"});
  int killed = 0;
  for (const int before_first : {0, 3, 11})
    killed += kill_when(training, [&] { return training.lines_written() >= before_first; });
  for (int i = 0; i < 5; ++i) {
    const std::ptrdiff_t target = training.lines_written() + static_cast<std::ptrdiff_t>(random() % 150);
    killed += kill_when(training, [&] { return training.lines_written() >= target; });
  }
  CHECK(killed >= 4);
  training.finish();
  check_undisturbed(training, undisturbed());
}

TEST_CASE("a run that is killed while it writes a checkpoint resumes from the one before") {
  std::mt19937 random(7);
  for (int i = 0; i < 4; ++i) {
    const Training training(same_numbers()[static_cast<std::size_t>(i)]);
    // The first checkpoint is among the moments: then there is none before.
    const std::ptrdiff_t after_step = i == 0 ? 1 : static_cast<std::ptrdiff_t>(random() % 300);
    bool caught = false;
    for (int attempt = 0; attempt < 10 && !caught; ++attempt) {
      BackgroundRun run(training.arguments());
      // A stopped process cannot finish its checkpoint while the test looks for it.
      for (int tries = 0; tries < 100'000 && !caught && !std::filesystem::exists(training.log()); ++tries) {
        if (training.lines_written() < after_step || !training.checkpoint_under_way()) continue;
        run.send(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        caught = training.checkpoint_under_way();
        if (!caught) run.send(SIGCONT);
      }
      run.send(SIGKILL);
      CHECK(run.wait().code != 2);
    }
    CHECK(caught);
    CHECK(training.checkpoint_under_way());
    training.finish();
    check_undisturbed(training, undisturbed());
  }
}

TEST_CASE("other numbers resume as well: bfloat16, several microbatches, OpenMP, dropout of attention") {
  std::mt19937 random(8);
  for (const Strings& settings : {Strings{"train.precision=bf16", "train.optimizer_state=bf16"},
                                  Strings{"train.microbatches=3", "graph.impl=layer"},
                                  Strings{"backend=openmp", "model.attention_dropout=0.2"}}) {
    CAPTURE(settings.front());
    const Training whole(settings);
    whole.finish();
    const Training training(settings);
    for (int i = 0; i < 2; ++i) {
      const std::ptrdiff_t target = training.lines_written() + static_cast<std::ptrdiff_t>(random() % 400);
      kill_when(training, [&] { return training.lines_written() >= target; });
    }
    training.finish();
    check_undisturbed(training, files_of(whole));
  }
}

TEST_CASE("a run that is killed after its last checkpoint, with its log not yet in place, gets its log") {
  const Training training({"graph.impl=none"});
  training.finish();
  const std::string log = read_bytes(training.log()), model = read_bytes(training.model());
  std::filesystem::rename(training.log(), training.log() + ".partial");
  training.finish();
  CHECK(read_bytes(training.log()) == log);
  CHECK(read_bytes(training.model()) == model);
  CHECK(numbers_of(log) == undisturbed().numbers);
}
