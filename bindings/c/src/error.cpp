// SPDX-License-Identifier: Apache-2.0
#include "error.hpp"

#include <encore/backend/version.hpp>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

namespace encore::c {

namespace {

constexpr int status_of(ErrorCode code) { return static_cast<int>(code) + 1; }
static_assert(status_of(ErrorCode::usage) == ENCORE_ERROR_USAGE);
static_assert(status_of(ErrorCode::configuration) == ENCORE_ERROR_CONFIGURATION);
static_assert(status_of(ErrorCode::input_file) == ENCORE_ERROR_INPUT_FILE);
static_assert(status_of(ErrorCode::output_file) == ENCORE_ERROR_OUTPUT_FILE);
static_assert(status_of(ErrorCode::device) == ENCORE_ERROR_DEVICE);
static_assert(status_of(ErrorCode::out_of_memory) == ENCORE_ERROR_OUT_OF_MEMORY);
static_assert(status_of(ErrorCode::capture) == ENCORE_ERROR_CAPTURE);
static_assert(status_of(ErrorCode::replay_contract) == ENCORE_ERROR_REPLAY_CONTRACT);
static_assert(status_of(ErrorCode::communication) == ENCORE_ERROR_COMMUNICATION);
static_assert(status_of(ErrorCode::validation) == ENCORE_ERROR_VALIDATION);
static_assert(status_of(ErrorCode::internal) == ENCORE_ERROR_INTERNAL);

struct LastError {
  int status = ENCORE_OK;
  std::string sentence;
  std::source_location where;
};
thread_local LastError last_error;

int keep(ErrorCode code, const char* sentence,
         const std::source_location& where = std::source_location::current()) noexcept {
  last_error.status = status_of(code);
  last_error.where = where;
  try {
    last_error.sentence = sentence;
  } catch (...) {
    last_error.sentence.clear();  // No memory for the words; the status still tells.
  }
  return last_error.status;
}

}  // namespace

int keep_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return keep(error.code(), error.what(), error.where());
  } catch (const std::bad_alloc&) {
    return keep(ErrorCode::out_of_memory, "the host has no memory left");
  } catch (const std::exception& error) {
    return keep(ErrorCode::internal, error.what());
  } catch (...) {
    return keep(ErrorCode::internal, "something was thrown that is no exception of C++");
  }
}

void require_pointer(const void* pointer, std::string_view name, std::source_location where) {
  if (pointer == nullptr)
    throw UsageError("argument '" + std::string(name) + "' is NULL: pass an address", where);
}

void rethrow_last_error() {
  throw Error(static_cast<ErrorCode>(last_error.status - 1), last_error.sentence, last_error.where);
}

void write_text(std::string_view value, char* text, std::size_t size, std::size_t* length) {
  if (size > 0) {
    require_pointer(text, "text");
    const std::size_t count = std::min(value.size(), size - 1);
    std::memcpy(text, value.data(), count);
    text[count] = '\0';
  }
  if (length != nullptr) *length = value.size();
}

}  // namespace encore::c

extern "C" {

const char* encore_status_name(int status) {
  switch (status) {
    case ENCORE_OK: return "ok";
    case ENCORE_ERROR_USAGE: return "usage";
    case ENCORE_ERROR_CONFIGURATION: return "configuration";
    case ENCORE_ERROR_INPUT_FILE: return "input_file";
    case ENCORE_ERROR_OUTPUT_FILE: return "output_file";
    case ENCORE_ERROR_DEVICE: return "device";
    case ENCORE_ERROR_OUT_OF_MEMORY: return "out_of_memory";
    case ENCORE_ERROR_CAPTURE: return "capture";
    case ENCORE_ERROR_REPLAY_CONTRACT: return "replay_contract";
    case ENCORE_ERROR_COMMUNICATION: return "communication";
    case ENCORE_ERROR_VALIDATION: return "validation";
    case ENCORE_ERROR_INTERNAL: return "internal";
  }
  return "unknown";
}

int encore_last_error_status(void) { return encore::c::last_error.status; }
const char* encore_last_error(void) { return encore::c::last_error.sentence.c_str(); }
const char* encore_last_error_file(void) { return encore::c::last_error.where.file_name(); }
int encore_last_error_line(void) { return static_cast<int>(encore::c::last_error.where.line()); }
const char* encore_last_error_function(void) { return encore::c::last_error.where.function_name(); }

const char* encore_version(void) { return ENCORE_VERSION_STRING; }
const char* encore_git_revision(void) {
  static const std::string revision(encore::backend::git_revision());
  return revision.c_str();
}

}  // extern "C"
