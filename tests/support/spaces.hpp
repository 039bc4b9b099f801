// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/memory.hpp>
#include <encore/backend/stream.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

/// The spaces of this build, for TEST_CASE_TEMPLATE: `TEST_CASE_TEMPLATE("...", Space, ENCORE_TEST_SPACES)`.
#if defined(KOKKOS_ENABLE_CUDA)
#define ENCORE_TEST_SPACES Kokkos::Serial, Kokkos::OpenMP, Kokkos::Cuda
TYPE_TO_STRING(Kokkos::Cuda);
#else
#define ENCORE_TEST_SPACES Kokkos::Serial, Kokkos::OpenMP
#endif
TYPE_TO_STRING(Kokkos::Serial);
TYPE_TO_STRING(Kokkos::OpenMP);

namespace encore::tests {

/// An array in a space's memory that a test fills and looks at from the host.
template <class Space, class T>
class TestArray {
 public:
  TestArray(backend::Stream<Space>& stream, const std::vector<T>& values)
      : stream_(&stream), size_(values.size()), memory_("test array", values.size() * sizeof(T)) {
    set(values);
  }

  void set(const std::vector<T>& values) {
    stream_->copy_to_device(memory_.data(), values.data(), values.size() * sizeof(T), "test array");
    stream_->synchronize("test array");
  }
  std::vector<T> get() const {
    std::vector<T> values(size_);
    stream_->copy_to_host(values.data(), memory_.data(), size_ * sizeof(T), "test array");
    stream_->synchronize("test array");
    return values;
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::size_t size() const { return size_; }

 private:
  backend::Stream<Space>* stream_;
  std::size_t size_;
  backend::Allocation<Space> memory_;
};

}  // namespace encore::tests
