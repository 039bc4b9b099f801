// SPDX-License-Identifier: Apache-2.0
#include "run_command.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <sstream>
#include <stdexcept>

namespace {

constexpr unsigned most_seconds = 120;

struct Pipe {
  int read = -1;
  int write = -1;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe can be made");
    read = ends[0];
    write = ends[1];
  }
};

[[noreturn]] void become_command(const std::vector<std::string>& arguments, const Surroundings& surroundings,
                                 int output, int error) {
  if (!surroundings.output.empty()) output = ::open(surroundings.output.c_str(), O_WRONLY);
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(error, STDERR_FILENO);
  if (surroundings.largest_file) {
    const rlimit limit{.rlim_cur = *surroundings.largest_file, .rlim_max = *surroundings.largest_file};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::vector<char*> pointers{const_cast<char*>(ENCORE_COMMAND)};
  for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  for (const std::string& variable : surroundings.environment) ::putenv(const_cast<char*>(variable.c_str()));
  ::alarm(most_seconds);
  ::execv(ENCORE_COMMAND, pointers.data());
  ::_exit(127);
}

}  // namespace

BackgroundRun::BackgroundRun(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  const Pipe output, error;
  process_ = ::fork();
  if (process_ == 0) become_command(arguments, surroundings, output.write, error.write);
  ::close(output.write);
  ::close(error.write);
  output_ = output.read;
  error_ = error.read;
}

BackgroundRun::~BackgroundRun() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  if (output_ >= 0) ::close(output_);
  if (error_ >= 0) ::close(error_);
}

void BackgroundRun::send(int signal) const { ::kill(process_, signal); }

void BackgroundRun::close_output() {
  ::close(output_);
  output_ = -1;
}

Outcome BackgroundRun::wait() {
  Outcome outcome;
  std::array<pollfd, 2> waiting{pollfd{output_, POLLIN, 0}, pollfd{error_, POLLIN, 0}};
  const std::array<std::string*, 2> texts{&outcome.output, &outcome.error};
  while (std::ranges::any_of(waiting, [](const pollfd& entry) { return entry.fd >= 0; })) {
    ::poll(waiting.data(), waiting.size(), -1);
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
      std::array<char, 4096> part{};
      const ssize_t count = ::read(waiting[i].fd, part.data(), part.size());
      if (count > 0) {
        texts[i]->append(part.data(), static_cast<std::size_t>(count));
      } else {
        waiting[i].fd = -1;
      }
    }
  }
  int status = 0;
  ::waitpid(process_, &status, 0);
  process_ = -1;
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

Outcome encore(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  return BackgroundRun(arguments, surroundings).wait();
}

void check_refused(const Outcome& outcome, int code, std::initializer_list<std::string_view> words) {
  INFO("standard error: ", outcome.error);
  CHECK(outcome.signal == 0);
  CHECK(outcome.code == code);
  CHECK(outcome.error.starts_with("encore: "));
  CHECK(std::ranges::count(outcome.error, '\n') == 1);
  CHECK(outcome.error.ends_with('\n'));
  for (const std::string_view word : words) {
    INFO("expected: ", word);
    CHECK(outcome.error.find(word) != std::string::npos);
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}
