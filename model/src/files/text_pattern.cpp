// SPDX-License-Identifier: Apache-2.0
#include "text_pattern.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#if ENCORE_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

#include <array>
#include <utility>

#include "text.hpp"
#include "utf8.hpp"

namespace encore::model {

#if ENCORE_HAVE_PCRE2

namespace {

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
template <class Type>
using Owned = std::unique_ptr<Type, Free>;

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return printable(reinterpret_cast<const char*>(text.data()));
}

PCRE2_SPTR characters(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct TextPattern::Compiled {
  Owned<pcre2_code> code;
  std::string where;
};

TextPattern::TextPattern(std::string_view expression, std::string where) {
  // What people write has a few hundred characters; a class grows about fivefold when it is spelled out.
  constexpr std::size_t longest = 4096;
  if (expression.size() > longest)
    throw ConfigurationError(
        fmt::format("{} has {} characters, more than the {} allowed", where, expression.size(), longest));
  const std::string translated = translated_pattern(expression, where);
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_parens_nest_limit(context.get(), 50);
  int code = 0;
  PCRE2_SIZE place = 0;
  Owned<pcre2_code> compiled(pcre2_compile(characters(translated), translated.size(),
                                           PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE, &code,
                                           &place, context.get()));
  if (!compiled)
    throw ConfigurationError(fmt::format("{} is {}, which PCRE2 does not take: {}", where,
                                         in_quotes(expression), error_text(code)));
  // Without just-in-time compilation, which some systems forbid, PCRE2 interprets: slower, with the same result.
  pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
  compiled_ = std::make_shared<const Compiled>(Compiled{std::move(compiled), std::move(where)});
}

struct PatternMatcher::Work {
  std::shared_ptr<const TextPattern::Compiled> pattern;
  Owned<pcre2_match_data> data;
  Owned<pcre2_match_context> context;
  Owned<pcre2_jit_stack> stack;
  std::string_view text;
  std::size_t place = 0;
};

PatternMatcher::PatternMatcher(const TextPattern& pattern) : work_(std::make_unique<Work>()) {
  constexpr std::size_t first_stack = 32 * 1024, largest_stack = 4 * 1024 * 1024;
  work_->pattern = pattern.compiled_;
  work_->data.reset(pcre2_match_data_create(1, nullptr));
  work_->context.reset(pcre2_match_context_create(nullptr));
  if (!work_->data || !work_->context) throw std::bad_alloc();
  work_->stack.reset(pcre2_jit_stack_create(first_stack, largest_stack, nullptr));
  if (work_->stack) pcre2_jit_stack_assign(work_->context.get(), nullptr, work_->stack.get());
}

void PatternMatcher::begin(std::string_view text) {
  work_->text = text;
  work_->place = 0;
}

std::optional<PatternMatcher::Match> PatternMatcher::next() {
  Work& work = *work_;
  while (work.place < work.text.size()) {
    const int result = pcre2_match(work.pattern->code.get(), characters(work.text), work.text.size(),
                                   work.place, PCRE2_NO_UTF_CHECK, work.data.get(), work.context.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      throw InputFileError(fmt::format("{} gives up on a text of {} bytes at byte {}: {}",
                                       work.pattern->where, work.text.size(), work.place,
                                       error_text(result)));
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(work.data.get());
    const Match match{ends[0], ends[1]};
    if (match.end > match.begin) {
      work.place = match.end;
      return match;
    }
    const std::size_t length = utf8_character(work.text.substr(match.end)).length;
    work.place = match.end + (length == 0 ? 1 : length);
  }
  work.place = work.text.size();
  return {};
}

#else

struct TextPattern::Compiled {};
struct PatternMatcher::Work {};

TextPattern::TextPattern(std::string_view, std::string where) {
  throw ConfigurationError(
      fmt::format("{} needs PCRE2, which this build does not have: build with ENCORE_ENABLE_PCRE2=ON where "
                  "PCRE2 is installed, "
                  "or use a token file",
                  where));
}

PatternMatcher::PatternMatcher(const TextPattern&) {}
void PatternMatcher::begin(std::string_view) {}
std::optional<PatternMatcher::Match> PatternMatcher::next() { return {}; }

#endif

PatternMatcher::~PatternMatcher() = default;
PatternMatcher::PatternMatcher(PatternMatcher&&) noexcept = default;

}  // namespace encore::model
