// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/c/status.h>
#include <encore/backend/error.hpp>

#include <cstddef>
#include <string_view>
#include <utility>

namespace encore::c {

/// Keeps the exception being handled as this thread's last error, and returns its status.
int keep_exception() noexcept;

/// What every function of the C API runs in: no exception leaves it.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return ENCORE_OK;
  } catch (...) {
    return keep_exception();
  }
}

/// Throws UsageError that names the argument unless it points somewhere.
void require_pointer(const void* pointer, std::string_view name,
                     std::source_location where = std::source_location::current());

/// A status of a call that failed on this thread, as the exception that it was.
[[noreturn]] void rethrow_last_error();

/// Writes a text as the functions of configuration.h tell.
void write_text(std::string_view value, char* text, std::size_t size, std::size_t* length);

}  // namespace encore::c
