// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/error.hpp>
#include <encore/backend/job_watch.hpp>

#include <exception>

namespace encore::backend {

/// Waits by `wait()` for a device on which ranks may wait for each other. When one of them ends meanwhile, throws
/// CommunicationError that names it: the watch, nullptr for none, ends the operations that wait for it.
template <class Wait>
void watched(JobWatch* watch, const Wait& wait) {
  if (watch == nullptr) return wait();
  const JobWatch::Waiting waiting(*watch);
  try {
    wait();
  } catch (const DeviceError&) {
    watch->explain();
    throw;
  }
  watch->check();
}

template <class Event, class Stream>
void wait(const Event& event, const Stream& stream, JobWatch* watch) {
  watched(watch, [&] { event.wait(stream); });
}

template <class Stream>
void synchronize(Stream& stream, const char* what, JobWatch* watch) {
  watched(watch, [&] { stream.synchronize(what); });
}

/// Does what all ranks do together, such as a step: an exception of one of them, whatever it is, ends the job for all,
/// and the others say which it was.
template <class Work>
auto as_one(JobWatch* watch, const Work& work) {
  if (watch == nullptr) return work();
  watch->check();
  try {
    return work();
  } catch (const std::exception& error) {
    watch->fail(error);
    throw;
  }
}

}  // namespace encore::backend
