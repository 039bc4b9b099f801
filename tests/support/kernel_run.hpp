// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace encore::tests {

/// The arrays of one kernel call. Before each run inputs get their values and outputs are poisoned with NaN;
/// execute() runs the kernel eagerly and recorded, and requires equal bits.
template <class Space>
class KernelRun {
 public:
  template <class T>
  using Vector = backend::Vector<T, Space>;
  template <class T>
  using Matrix = backend::Matrix<T, Space>;

  backend::Stream<Space>& stream() { return stream_; }

  template <class T, class From>
  Vector<const T> input(const std::vector<From>& values) {
    return add<T>(values.size(), converted<T>(values), false);
  }
  template <class T, class From>
  Matrix<const T> input(const std::vector<From>& values, std::int64_t columns) {
    return matrix<const T>(input<T>(values), columns);
  }
  /// Results that start from something.
  template <class T, class From>
  Vector<T> in_out(const std::vector<From>& values) {
    return add<T>(values.size(), converted<T>(values), true);
  }
  template <class T, class From>
  Matrix<T> in_out(const std::vector<From>& values, std::int64_t columns) {
    return matrix<T>(in_out<T>(values), columns);
  }
  template <class T>
  Vector<T> output(std::int64_t size) {
    return add<T>(size, poison(size * sizeof(T)), true);
  }
  template <class T>
  Matrix<T> output(std::int64_t rows, std::int64_t columns) {
    return Matrix<T>(output<T>(rows * columns).data(), rows, columns);
  }
  template <class T>
  Matrix<T> workspace(std::int64_t rows, std::int64_t columns) {
    return Matrix<T>(add<T>(rows * columns, poison(rows * columns * sizeof(T)), false).data(), rows, columns);
  }

  /// Runs `kernel` once eagerly; then records it, checks that recording ran nothing, and replays it twice.
  /// Each must leave the same bytes in the outputs, which are returned.
  std::vector<std::byte> execute(const std::function<void()>& kernel) {
    reset();
    kernel();
    const std::vector<std::byte> eager = outputs();
    reset();
    const std::vector<std::byte> before = outputs();
    backend::RecordedGraph<Space> graph(stream_, "test", kernel);
    CHECK(graph.nodes() > 0);
    CHECK(outputs() == before);
    for (int repeat = 0; repeat < 2; ++repeat) {
      reset();
      graph.replay();
      CHECK(outputs() == eager);
    }
    return eager;
  }

  /// An array's contents as doubles.
  template <class View>
  std::vector<double> values(const View& view) {
    using T = typename View::non_const_value_type;
    std::vector<T> host(view.size());
    stream_.copy_to_host(host.data(), view.data(), host.size() * sizeof(T), "test");
    stream_.synchronize("test");
    return std::vector<double>(host.begin(), host.end());
  }

 private:
  struct Array {
    backend::Allocation<Space> memory;
    std::vector<std::byte> start;
    bool is_output;
  };

  /// All bits set: NaN in every floating-point type, -1 in integers.
  static std::vector<std::byte> poison(std::size_t bytes) {
    return std::vector<std::byte>(bytes, std::byte{0xff});
  }

  template <class T, class From>
  static std::vector<std::byte> converted(const std::vector<From>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const T value = static_cast<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
    return bytes;
  }

  template <class T>
  Vector<T> add(std::size_t size, std::vector<std::byte> start, bool is_output) {
    arrays_.push_back({backend::Allocation<Space>("test", start.size()), std::move(start), is_output});
    return Vector<T>(reinterpret_cast<T*>(arrays_.back().memory.data()), size);
  }

  template <class T>
  static Matrix<T> matrix(Vector<T> values, std::int64_t columns) {
    return Matrix<T>(values.data(), values.size() / columns, columns);
  }

  void reset() {
    for (const Array& array : arrays_)
      stream_.copy_to_device(array.memory.data(), array.start.data(), array.start.size(), "test");
    stream_.synchronize("test");
  }

  std::vector<std::byte> outputs() {
    std::vector<std::byte> all;
    for (const Array& array : arrays_) {
      if (!array.is_output) continue;
      const std::size_t begin = all.size();
      all.resize(begin + array.start.size());
      stream_.copy_to_host(all.data() + begin, array.memory.data(), array.start.size(), "test");
    }
    stream_.synchronize("test");
    return all;
  }

  backend::Stream<Space> stream_;
  std::vector<Array> arrays_;
};

/// Compares the bytes that host spaces produce for the same case: they must not depend on the space or on its
/// number of threads.
class HostAgreement {
 public:
  template <class Space>
  void add(const std::string& name, std::vector<std::byte> bytes) {
    if constexpr (backend::is_host_space<Space>) {
      const auto [known, added] = results_.try_emplace(name, bytes);
      if (added) return;
      INFO(name);
      CHECK(known->second == bytes);
    }
  }

 private:
  std::map<std::string, std::vector<std::byte>> results_;
};

}  // namespace encore::tests
