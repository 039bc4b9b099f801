// SPDX-License-Identifier: Apache-2.0
#include "rank_file.hpp"

#include <encore/backend/error.hpp>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>
#include <system_error>

namespace encore::backend::impl {

namespace {

constexpr const char* first_line = "encore rank 1";

std::string line_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct ProcessStatus {
  char state;
  std::string started;
};

/// Linux: the fields behind the name, which may hold anything; the state is the first of them, the start the twentieth.
std::optional<ProcessStatus> status_of(std::int64_t process) {
  const std::string line = line_of("/proc/" + std::to_string(process) + "/stat");
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessStatus status{};
  fields >> status.state;
  for (int field = 0; field < 19; ++field) fields >> status.started;
  return status;
}

std::string place_of_this_process() {
  const std::string boot = line_of("/proc/sys/kernel/random/boot_id");
  if (boot.empty()) return "";
  std::error_code error;  // Without the link all process ids of the host mean the same.
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
}

std::string one_line(std::string text) {
  for (char& letter : text)
    if (letter == '\n' || letter == '\r') letter = ' ';
  return text;
}

const char* name_of(RankState state) {
  constexpr std::array names{"running", "left", "failed"};
  return names[static_cast<std::size_t>(state)];
}

}  // namespace

RankFile RankFile::of_this_process() {
  RankFile file;
  std::random_device source;
  std::array<char, 40> nonce{};
  std::snprintf(nonce.data(), nonce.size(), "%08x%08x%08x%08x", source(), source(), source(), source());
  file.nonce = nonce.data();
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) file.host = host.data();
  file.place = place_of_this_process();
  file.process = ::getpid();
  file.started = start_of_process(file.process);
  return file;
}

std::optional<RankFile> RankFile::read(const std::filesystem::path& path) {
  std::ifstream lines(path);
  std::string line;
  if (!std::getline(lines, line) || line != first_line) return std::nullopt;
  RankFile file;
  bool whole = false;
  while (std::getline(lines, line)) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) {
      whole = line == "end";
      break;
    }
    const std::string key = line.substr(0, equals);
    const std::string value = line.substr(equals + 1);
    std::istringstream words(value);
    if (key == "nonce") file.nonce = value;
    if (key == "host") file.host = value;
    if (key == "place") file.place = value;
    if (key == "process") words >> file.process;
    if (key == "started") file.started = value;
    if (key == "beat") words >> file.beat;
    if (key == "step") words >> file.step;
    if (key == "state")
      file.state = value == "running" ? RankState::running
                   : value == "left"  ? RankState::left
                                      : RankState::failed;
    if (key == "cause") file.cause = value;
    if (key == "joined") file.joined = value;
    if (key == "offer") file.offer = value;
    if (key == "seen")
      for (std::string word; words >> word;) file.seen.push_back(word);
  }
  if (!whole) return std::nullopt;
  return file;
}

void RankFile::write(const std::filesystem::path& path) const {
  std::filesystem::path next = path;
  next += "." + nonce;
  bool good = false;
  {
    std::ofstream lines(next);
    lines << first_line << "\nnonce=" << nonce << "\nhost=" << one_line(host) << "\nplace=" << place
          << "\nprocess=" << process << "\nstarted=" << started << "\nbeat=" << beat << "\nstep=" << step
          << "\nstate=" << name_of(state) << "\ncause=" << one_line(cause) << "\njoined=" << joined
          << "\noffer=" << offer << "\nseen=";
    for (const std::string& other : seen) lines << (other.empty() ? "-" : other) << ' ';
    lines << "\nend\n" << std::flush;
    good = lines.good();
  }
  std::error_code error;
  if (good) std::filesystem::rename(next, path, error);
  if (!good || error) {
    std::error_code ignored;
    std::filesystem::remove(next, ignored);
    throw OutputFileError("the file '" + path.string() +
                          "' by which ranks find each other cannot be written" +
                          (error ? ": " + error.message() : "; is there space, and is the folder writable?"));
  }
}

bool RankFile::has_ended(const std::string& here) const {
  if (place.empty() || place != here) return false;
  const auto status = status_of(process);
  return !status || status->started != started || status->state == 'Z' || status->state == 'X';
}

std::string RankFile::who() const { return "process " + std::to_string(process) + " on '" + host + "'"; }

std::string start_of_process(std::int64_t process) {
  const auto status = status_of(process);
  return status ? status->started : "";
}

std::filesystem::path rank_file_path(const std::filesystem::path& folder, int rank) {
  return folder / ("rank-" + std::to_string(rank));
}

}  // namespace encore::backend::impl
