// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/thread_transport.hpp>

#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace encore::tests {

/// Runs `body(transport)` on each rank of a group of threads. The first exception is passed on when all have ended;
/// a rank that throws leaves the group, so that the others end too.
template <class Body>
void on_ranks(int ranks, const Body& body) {
  auto transports = backend::thread_transports("rank threads", ranks, std::chrono::minutes(2));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank, transport = std::move(transports[rank])]() mutable {
      try {
        body(transport);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        transport->close();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace encore::tests
