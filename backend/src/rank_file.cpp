// SPDX-License-Identifier: Apache-2.0
#include "rank_file.hpp"

#include <encore/backend/error.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>

namespace encore::backend::impl {

namespace {

constexpr const char* first_line = "encore rank 1";

/// An open file.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() { (void)close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return descriptor_; }
  /// Some file systems tell only now that a write has failed.
  bool close() {
    const int descriptor = std::exchange(descriptor_, -1);
    return descriptor < 0 || ::close(descriptor) == 0;
  }

 private:
  int descriptor_;
};

/// Nothing where there is no such file. Others may have put anything into a shared folder: a link would lead elsewhere,
/// and a pipe would keep its reader waiting.
std::optional<std::string> contents_of(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::string text;
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t bytes = ::read(file.get(), part.data(), part.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return std::nullopt;
    if (bytes == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(bytes));
  }
}

std::string line_of(const std::filesystem::path& path) {
  const std::string text = contents_of(path).value_or("");
  return text.substr(0, text.find('\n'));
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
  if (!fields) return std::nullopt;
  return status;
}

std::string place_of_this_process() {
  const std::string boot = line_of("/proc/sys/kernel/random/boot_id");
  if (boot.empty()) return "";
  std::error_code error;  // Without the link all process ids of the host mean the same.
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
}

/// A new file, which this user alone may read and write. Returns 0, or what was wrong.
int write_new(const std::filesystem::path& path, const std::string& text) {
  (void)::unlink(path.c_str());
  Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0) return errno;
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t bytes = ::write(file.get(), text.data() + written, text.size() - written);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return errno;
    written += static_cast<std::size_t>(bytes);
  }
  return file.close() ? 0 : errno;
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
  const auto text = contents_of(path);
  if (!text) return std::nullopt;
  std::istringstream lines(*text);
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
    if (key == "size") words >> file.size;
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
  std::ostringstream lines;
  lines << first_line << "\nnonce=" << nonce << "\nhost=" << one_line(host) << "\nplace=" << place
        << "\nprocess=" << process << "\nstarted=" << started << "\nsize=" << size << "\nbeat=" << beat
        << "\nstep=" << step << "\nstate=" << name_of(state) << "\ncause=" << one_line(cause)
        << "\njoined=" << joined << "\noffer=" << offer << "\nseen=";
  for (const std::string& other : seen) lines << (other.empty() ? "-" : other) << ' ';
  lines << "\nend\n";
  std::error_code error(write_new(next, lines.str()), std::system_category());
  if (!error) std::filesystem::rename(next, path, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(next, ignored);
    throw OutputFileError("the file '" + path.string() +
                          "' by which ranks find each other cannot be written: " + error.message());
  }
}

bool RankFile::has_ended(const std::string& here) const {
  if (place.empty() || place != here || process <= 0) return false;
  if (::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) return true;
  // It cannot be read where this process has too many files open, say: then nothing is known.
  const auto status = status_of(process);
  if (!status) return false;
  const bool another = !started.empty() && status->started != started;
  return another || status->state == 'Z' || status->state == 'X';
}

bool RankFile::same_process(const RankFile& other) const {
  return !place.empty() && place == other.place && process == other.process && started == other.started;
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
