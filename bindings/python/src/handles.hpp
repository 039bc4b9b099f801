// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/encore.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

// The objects of the C API as owners. Each holds what it must not outlive.

namespace encore::python {

namespace nb = nanobind;

/// A call that failed, on its way to an exception of encore.errors.
struct CallError : std::exception {
  CallError();  ///< of this thread's last error
  CallError(int the_status, std::string the_sentence)
      : status(the_status), sentence(std::move(the_sentence)) {}
  const char* what() const noexcept override { return sentence.c_str(); }

  int status;
  std::string sentence;
  std::string where;  ///< file:line
};

/// Calls the library without the GIL, which other threads and the functions that the library calls back may need.
template <class Call>
void call(const Call& library) {
  int status;
  {
    const nb::gil_scoped_release released;
    status = library();
  }
  if (status != ENCORE_OK) throw CallError();
}

/// The text of a function that takes (text, size, length).
template <class Write>
std::string text_of(const Write& write) {
  std::size_t length = 0;
  call([&] { return write(nullptr, 0, &length); });
  std::string text(length + 1, '\0');
  call([&] { return write(text.data(), text.size(), &length); });
  text.resize(length);
  return text;
}

/// Something of a runtime that can be closed before Python forgets it.
class Closable {
 public:
  Closable() = default;
  virtual ~Closable() = default;
  Closable(const Closable&) = delete;
  Closable& operator=(const Closable&) = delete;
  virtual void close() = 0;
};

class Runtime {
 public:
  explicit Runtime(int threads);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  encore_runtime* get() const;
  void add(std::weak_ptr<Closable> object) { objects_.push_back(std::move(object)); }
  /// Throws CallError while something belongs to it.
  void close();
  /// Closes all that belongs to it, the youngest first, and then itself.
  void close_all();

 private:
  encore_runtime* runtime_ = nullptr;
  std::vector<std::weak_ptr<Closable>> objects_;
};

/// Counts the arrays that look into memory which ends with an object.
class Views {
 public:
  /// An owner for one array: keeps `object` alive and is counted until the array dies.
  nb::object owner(std::shared_ptr<void> object);
  /// Throws CallError while there are any.
  void require_none(const std::string& of) const;

 private:
  std::shared_ptr<std::atomic<int>> count_ = std::make_shared<std::atomic<int>>(0);
};

class Trainer final : public Closable {
 public:
  Trainer(std::shared_ptr<Runtime> runtime, encore_configuration* configuration);
  ~Trainer() override;
  encore_trainer* get() const;
  void close() override;
  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }
  Views& views() { return views_; }

 private:
  std::shared_ptr<Runtime> runtime_;
  encore_trainer* trainer_ = nullptr;
  Views views_;
};

/// An array as it was given, kept while a graph needs its memory.
using KeptArray = nb::ndarray<nb::ro>;

/// A function of Python that a graph calls.
struct PythonNode {
  nb::object function;
  std::shared_ptr<std::exception_ptr> failure;  ///< where what it raised goes
};

/// What a recording needs for as long as its graph lives.
struct Recording {
  std::vector<KeptArray> arrays;
  std::vector<std::unique_ptr<PythonNode>> nodes;
};

class Stream final : public Closable {
 public:
  Stream(std::shared_ptr<Runtime> runtime, encore_backend backend, void* native);
  ~Stream() override;
  encore_stream* get() const;
  void close() override;
  encore_backend backend() const { return backend_; }
  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }
  Views& views() { return views_; }

  /// Remembers the memory for the graph that is being recorded.
  template <class Array>
  void keep(const Array& array) {
    if (recording != nullptr) recording->arrays.emplace_back(array.handle());
  }
  /// Calls the library; where a function of Python raised meanwhile, passes that on instead.
  template <class Call>
  void call_back(const Call& library) {
    try {
      call(library);
    } catch (const CallError&) {
      if (const std::exception_ptr raised = std::exchange(*failure, nullptr)) std::rethrow_exception(raised);
      throw;
    }
    *failure = nullptr;
  }

  Recording* recording = nullptr;  ///< while one is made
  std::shared_ptr<std::exception_ptr> failure = std::make_shared<std::exception_ptr>();

 private:
  std::shared_ptr<Runtime> runtime_;
  encore_stream* stream_ = nullptr;
  encore_backend backend_;
  Views views_;
};

encore_backend backend_of(const std::string& name);
encore_type type_of(const std::string& name);
std::size_t size_of(encore_type type);
/// Elements of an array of the shape. Throws CallError where their bytes are more than an address space holds.
std::int64_t elements_of(const std::vector<std::size_t>& shape, encore_type type);
nb::dlpack::dtype dtype_of(encore_type type);

/// An array of Python over memory of the device: of NumPy on hosts where NumPy has the type, else one that other
/// libraries take by DLPack.
nb::object make_array(void* memory, encore_type type, const std::vector<std::size_t>& shape, bool on_cuda,
                      int device, nb::object owner);

void bind_trainer(nb::module_& module);
void bind_stream(nb::module_& module);
void bind_kernels(nb::class_<Stream>& stream);

}  // namespace encore::python
