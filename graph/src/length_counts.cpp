// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/length_buckets.hpp>

#include <fmt/format.h>

#include <charconv>
#include <map>

namespace encore::graph {

namespace {

constexpr std::string_view blanks = " \t\r\v\f";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

/// What stands in a file, cut and made fit for one line of an error.
std::string shown(std::string_view text) {
  constexpr std::size_t longest = 40;
  std::string result;
  for (const char character : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(character);
    result += byte < 0x20 || byte >= 0x7f ? '?' : character;
  }
  return "'" + result + (text.size() > longest ? "...'" : "'");
}

/// Reads one line's numbers and says where they are wrong.
class LineReader {
 public:
  LineReader(std::string_view source, std::size_t number) : source_(source), number_(number) {}

  LengthCount read(std::string_view line) const {
    const std::size_t end = line.find_first_of(" \t\r\v\f,");
    LengthCount result{whole(line.substr(0, end), "length")};
    if (end == std::string_view::npos) return result;
    std::string_view rest = trimmed(line.substr(end));
    if (rest.starts_with(',')) rest = trimmed(rest.substr(1));
    result.count = whole(rest, "count");
    return result;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw InputFileError(fmt::format("'{}', line {}: {}", source_, number_, what));
  }

 private:
  std::int64_t whole(std::string_view text, std::string_view what) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range)
      refuse(fmt::format("the {} {} is too large", what, shown(text)));
    if (error != std::errc() || end != text.data() + text.size())
      refuse(fmt::format("{} stands where a {} should: a line is a length and, if wanted, a count",
                         shown(text), what));
    if (value < 1) refuse(fmt::format("the {} {} must be at least 1", what, value));
    return value;
  }

  std::string_view source_;
  std::size_t number_;
};

}  // namespace

std::vector<LengthCount> parse_length_counts(std::string_view text, std::string_view source) {
  std::map<std::int64_t, std::int64_t> counts;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const LineReader reader(source, number);
    const LengthCount entry = reader.read(line);
    std::int64_t& count = counts[entry.length];
    if (__builtin_add_overflow(count, entry.count, &count))
      reader.refuse("the counts are too large to be added");
  }
  if (counts.empty()) throw InputFileError(fmt::format("'{}' holds no length", source));
  std::vector<LengthCount> histogram;
  histogram.reserve(counts.size());
  for (const auto& [length, count] : counts) histogram.push_back({length, count});
  return histogram;
}

}  // namespace encore::graph
