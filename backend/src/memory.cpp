// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/memory.hpp>

namespace encore::backend {

namespace {

constexpr std::size_t alignment = 256;

template <class Storage>
Storage allocate(const std::string& label, std::size_t bytes) {
  try {
    return Storage(Kokkos::view_alloc(Kokkos::WithoutInitializing, label), bytes);
  } catch (const std::exception&) {  // Kokkos' allocation errors share no base class below this one.
    throw OutOfMemoryError("not enough memory for '" + label + "': " + std::to_string(bytes) +
                           " bytes were asked for; use a smaller model or microbatch");
  }
}

}  // namespace

template <class Space>
Allocation<Space>::Allocation(const std::string& label, std::size_t bytes) : bytes_(bytes) {
  if (bytes > available_memory<Space>())
    throw OutOfMemoryError("not enough memory for '" + label + "': " + std::to_string(bytes) +
                           " bytes were asked for and " + std::to_string(available_memory<Space>()) +
                           " are available; use a smaller model or microbatch");
  storage_ = allocate<Storage>(label, bytes + alignment);
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  data_ = reinterpret_cast<std::byte*>((address + alignment - 1) / alignment * alignment);
}

template <class Space>
StagingAllocation<Space>::StagingAllocation(const std::string& label, std::size_t bytes)
    : storage_(allocate<Kokkos::View<std::byte*, StagingSpace>>(label, bytes)) {}

#define ENCORE_INSTANTIATE(SPACE)   \
  template class Allocation<SPACE>; \
  template class StagingAllocation<SPACE>;
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::backend
