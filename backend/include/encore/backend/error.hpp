// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace encore {

enum class ErrorCode {
  usage,            ///< the command line is malformed
  configuration,    ///< a key, a value or a combination of values is not allowed
  input_file,       ///< a file that is read is missing, truncated or lies about itself
  output_file,      ///< a file cannot be written; what stood under its name before is untouched
  device,           ///< no such device, or a device or vendor library reported a failure
  out_of_memory,    ///< host or device memory, or a stated memory limit, does not suffice
  capture,          ///< a run of segments cannot be, or could not be, captured
  replay_contract,  ///< a replay was asked for with something that differs from what was captured
  communication,    ///< a rank of a group is gone, is late, or does something else than the others
  validation,       ///< a result differs from its reference, or a verdict is negative
  internal          ///< a defect of the library itself
};

/// The exit code a command gives for an error of this kind: 2 bad usage or configuration, 3 bad file,
/// 4 failure of a device, memory, capture or communication, 5 validation failed, 70 (EX_SOFTWARE) a defect.
constexpr int exit_code(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::usage:
    case ErrorCode::configuration: return 2;
    case ErrorCode::input_file:
    case ErrorCode::output_file: return 3;
    case ErrorCode::device:
    case ErrorCode::out_of_memory:
    case ErrorCode::capture:
    case ErrorCode::replay_contract:
    case ErrorCode::communication: return 4;
    case ErrorCode::validation: return 5;
    case ErrorCode::internal: break;
  }
  return 70;
}

/// The base of everything the library throws on purpose. `what()` is one sentence that names the thing
/// (file, key, segment, number) and, where there is one, the fix.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string sentence, std::source_location where = std::source_location::current())
      : std::runtime_error(std::move(sentence)), code_(code), where_(where) {}

  ErrorCode code() const noexcept { return code_; }
  const std::source_location& where() const noexcept { return where_; }
  int exit_code() const noexcept { return encore::exit_code(code_); }

 private:
  ErrorCode code_;
  std::source_location where_;
};

/// An Error whose code is fixed by its type, so that a caller can catch one kind.
template <ErrorCode Code>
class ErrorOf : public Error {
 public:
  static constexpr ErrorCode static_code = Code;

  explicit ErrorOf(std::string sentence, std::source_location where = std::source_location::current())
      : Error(Code, std::move(sentence), where) {}
};

class UsageError : public ErrorOf<ErrorCode::usage> {
  using ErrorOf::ErrorOf;
};
class ConfigurationError : public ErrorOf<ErrorCode::configuration> {
  using ErrorOf::ErrorOf;
};
class InputFileError : public ErrorOf<ErrorCode::input_file> {
  using ErrorOf::ErrorOf;
};
class OutputFileError : public ErrorOf<ErrorCode::output_file> {
  using ErrorOf::ErrorOf;
};
class DeviceError : public ErrorOf<ErrorCode::device> {
  using ErrorOf::ErrorOf;
};
class OutOfMemoryError : public ErrorOf<ErrorCode::out_of_memory> {
  using ErrorOf::ErrorOf;
};
class CaptureError : public ErrorOf<ErrorCode::capture> {
  using ErrorOf::ErrorOf;
};
class ReplayContractError : public ErrorOf<ErrorCode::replay_contract> {
  using ErrorOf::ErrorOf;
};
class CommunicationError : public ErrorOf<ErrorCode::communication> {
  using ErrorOf::ErrorOf;
};
class ValidationError : public ErrorOf<ErrorCode::validation> {
  using ErrorOf::ErrorOf;
};
class InternalError : public ErrorOf<ErrorCode::internal> {
  using ErrorOf::ErrorOf;
};

/// Throws `Exception` with the sentence unless the condition holds. For a fixed sentence: where the sentence
/// has to be put together, write `if (!condition) throw ...` so that the good path builds no string.
template <std::derived_from<Error> Exception = InternalError>
void require(bool condition, std::string_view sentence,
             std::source_location where = std::source_location::current()) {
  if (!condition) throw Exception(std::string(sentence), where);
}

}  // namespace encore
