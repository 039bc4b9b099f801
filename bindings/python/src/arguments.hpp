// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>

#include "handles.hpp"

namespace encore::python {

using Input = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;

const char* name_of(encore_type type);
/// Throws CallError that names the argument for a type that no kernel has.
encore_type type_of(nb::dlpack::dtype dtype, const char* name);

/// An array given for a kernel: in the stream's memory and without gaps, or CallError says what it is instead.
class Argument {
 public:
  template <class... Options>
  Argument(const Stream& stream, const nb::ndarray<Options...>& array, const char* name)
      : name_(name), data_(const_cast<void*>(static_cast<const void*>(array.data()))) {
    for (std::size_t i = 0; i < array.ndim(); ++i) shape_.push_back(array.shape(i));
    type_ = type_of(array.dtype(), name);
    elements_ = elements_of(shape_, type_);
    check_place(stream, array.device_type());
    std::int64_t stride = 1;
    bool contiguous = true;
    for (std::size_t i = elements_ > 1 ? array.ndim() : 0; i-- > 0;) {
      if (array.shape(i) != 1 && array.stride(i) != stride) contiguous = false;
      stride *= static_cast<std::int64_t>(array.shape(i));
    }
    if (!contiguous) fail("has gaps: pass one that is C-contiguous");
  }

  void* data() const { return data_; }
  encore_type type() const { return type_; }
  const std::vector<std::size_t>& shape() const { return shape_; }
  std::int64_t elements() const { return elements_; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(type_); }
  /// All dimensions but the last one together, and the last one. A scalar is [1, 1].
  std::int64_t rows() const { return columns() == 0 ? 0 : elements() / columns(); }
  std::int64_t columns() const { return shape_.empty() ? 1 : static_cast<std::int64_t>(shape_.back()); }

  const Argument& require_type(encore_type type) const;
  const Argument& require_elements(std::int64_t count) const;

 private:
  void check_place(const Stream& stream, int device_type) const;
  [[noreturn]] void fail(const std::string& what) const;

  const char* name_;
  void* data_;
  encore_type type_;
  std::vector<std::size_t> shape_;
  std::int64_t elements_ = 0;
};

/// The type of sums of arrays of the type.
inline encore_type accumulator_of(encore_type type) { return type == ENCORE_FLOAT64 ? type : ENCORE_FLOAT32; }

}  // namespace encore::python
