// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/tuning_cache.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

namespace encore::backend {

namespace {

constexpr std::string_view title = "encore tuned products ";
constexpr int format = 1;
constexpr std::size_t longest_field = 1024;
constexpr std::size_t most_entries = 100'000;

/// Names of devices, libraries and products are plain ASCII.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= longest_field &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

bool is_algorithm(std::string_view text) {
  return !text.empty() && text.size() <= longest_field && text.size() % 2 == 0 &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_time(double microseconds) {
  return std::isfinite(microseconds) && microseconds > 0 && microseconds < 1e12;
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Reads a text line by line, and throws errors that name the line.
class Lines {
 public:
  Lines(std::string_view text, std::string_view source) : rest_(text), source_(source) {}

  bool done() const { return rest_.empty(); }
  std::string_view next() {
    ++line_;
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) fail("the file ends within the line");
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return line;
  }
  [[noreturn]] void fail(std::string_view what) const {
    throw InputFileError(
        fmt::format("the tuning cache '{}' is damaged: line {}: {}: remove the file, and it is made anew",
                    source_, line_, what));
  }

 private:
  std::string_view rest_;
  std::string_view source_;
  std::size_t line_ = 0;
};

enum Field { device, library, product, algorithm, microseconds, field_count };

std::array<std::string_view, field_count> fields_of(std::string_view line, const Lines& lines) {
  if (std::ranges::count(line, '\t') != field_count - 1)
    lines.fail(fmt::format("it must have {} fields with tabs between them", int{field_count}));
  std::array<std::string_view, field_count> fields;
  for (std::string_view& field : fields) {
    const std::size_t end = std::min(line.find('\t'), line.size());
    field = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return fields;
}

}  // namespace

bool TuningCache::read(std::string_view text, std::string_view source) {
  Lines lines(text, source);
  const std::string_view first = lines.done() ? std::string_view() : lines.next();
  const auto version =
      first.starts_with(title) ? number<int>(first.substr(title.size())) : std::optional<int>();
  if (!version || *version < 1) lines.fail(fmt::format("it must be '{}{}'", title, format));
  if (*version != format) return false;
  TuningCache found;
  for (std::size_t count = 0; !lines.done(); ++count) {
    if (count == most_entries) lines.fail(fmt::format("there are more than {} entries", most_entries));
    const auto fields = fields_of(lines.next(), lines);
    for (const Field name : {device, library, product})
      if (!is_name(fields[name])) lines.fail("a name is empty, too long or not plain ASCII");
    if (!is_algorithm(fields[algorithm])) lines.fail("an algorithm must be pairs of hexadecimal digits");
    const auto time = number<double>(fields[microseconds]);
    if (!time || !is_time(*time)) lines.fail("the last field must be a time in microseconds");
    auto& products = found.entries_[{std::string(fields[device]), std::string(fields[library])}];
    if (!products.try_emplace(std::string(fields[product]), std::string(fields[algorithm]), *time).second)
      lines.fail("the product has an entry already");
  }
  for (auto& [machine, products] : found.entries_) entries_[machine].merge(products);
  return true;
}

std::string TuningCache::text() const {
  std::string text = fmt::format("{}{}\n", title, format);
  for (const auto& [machine, products] : entries_)
    for (const auto& [name, tuned] : products)
      text += fmt::format("{}\t{}\t{}\t{}\t{}\n", machine.device, machine.library, name, tuned.algorithm,
                          tuned.microseconds);
  return text;
}

const TunedProduct* TuningCache::find(const TuningMachine& machine, std::string_view name) const {
  const auto products = entries_.find(machine);
  if (products == entries_.end()) return nullptr;
  const auto found = products->second.find(name);
  return found == products->second.end() ? nullptr : &found->second;
}

void TuningCache::add(const TuningMachine& machine, std::string_view name, const TunedProduct& tuned) {
  require(is_name(machine.device) && is_name(machine.library) && is_name(name) &&
              is_algorithm(tuned.algorithm) && is_time(tuned.microseconds),
          "a measured product cannot be written into a tuning cache");
  entries_[machine].insert_or_assign(std::string(name), tuned);
  ++changes_;
}

std::size_t TuningCache::size() const {
  std::size_t sum = 0;
  for (const auto& [machine, products] : entries_) sum += products.size();
  return sum;
}

std::size_t TuningCache::size_beside(const TuningMachine& machine) const {
  const auto own = entries_.find(machine);
  return size() - (own == entries_.end() ? 0 : own->second.size());
}

}  // namespace encore::backend
