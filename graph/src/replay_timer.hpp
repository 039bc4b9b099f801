// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/device.hpp>
#include <encore/backend/event.hpp>
#include <encore/backend/watched_wait.hpp>
#include <encore/graph/verdict.hpp>

#include <algorithm>
#include <functional>
#include <vector>

namespace encore::graph {

/// How long `work`, which only queues, keeps the device busy. `ahead` is queued just before the first mark, so that the
/// device does not wait for the host between the marks.
template <class Space, class Ahead, class Work>
double device_milliseconds(backend::Device<Space>& device, const Ahead& ahead, const Work& work) {
  auto& stream = device.stream();
  backend::Event<Space> begin, end;
  ahead();
  begin.record(stream);
  work();
  end.record(stream);
  backend::wait(end, stream, device.watch());
  return backend::Event<Space>::milliseconds(begin, end);
}

/// The median of `samples` calls of `sample`, or of at least three where they would take longer than `most`.
template <class Sample>
double median_of_samples(int samples, double most_milliseconds, const Sample& sample) {
  constexpr int least = 3;
  std::vector<double> times;
  double sum = 0;
  while (static_cast<int>(times.size()) < samples &&
         (static_cast<int>(times.size()) < least || sum < most_milliseconds)) {
    times.push_back(sample());
    sum += times.back();
  }
  return median(std::move(times));
}

}  // namespace encore::graph
