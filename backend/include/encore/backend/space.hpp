// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace encore::backend {

enum class Backend { serial, openmp, cuda };

constexpr std::string_view name_of(Backend backend) {
  switch (backend) {
    case Backend::serial: return "serial";
    case Backend::openmp: return "openmp";
    case Backend::cuda: return "cuda";
  }
  return "unknown";
}

#if defined(KOKKOS_ENABLE_SERIAL)
using Serial = Kokkos::Serial;
#endif
#if defined(KOKKOS_ENABLE_OPENMP)
using OpenMP = Kokkos::OpenMP;
#endif
#if defined(KOKKOS_ENABLE_CUDA)
using Cuda = Kokkos::Cuda;
#endif

template <class Space>
inline constexpr bool is_host_space =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible;

template <class Space>
constexpr Backend backend_of() {
#if defined(KOKKOS_ENABLE_CUDA)
  if constexpr (std::is_same_v<Space, Kokkos::Cuda>) return Backend::cuda;
#endif
#if defined(KOKKOS_ENABLE_OPENMP)
  if constexpr (std::is_same_v<Space, Kokkos::OpenMP>) return Backend::openmp;
#endif
  return Backend::serial;
}

/// Row-major, unmanaged views: kernels never own memory, and a recorded graph must not hold references.
template <class T, class Space>
using Vector = Kokkos::View<T*, Kokkos::LayoutRight, typename Space::memory_space,
                            Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T, class Space>
using Matrix = Kokkos::View<T**, Kokkos::LayoutRight, typename Space::memory_space,
                            Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T, class Space>
using Tensor3 = Kokkos::View<T***, Kokkos::LayoutRight, typename Space::memory_space,
                             Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

}  // namespace encore::backend

// Explicit instantiation over what Kokkos was built with. `M(Space)` or `M(Space, T)`.
// float64 exists on Serial only: it is the reference that gradients are checked against.
#if defined(KOKKOS_ENABLE_SERIAL)
#define ENCORE_IF_SERIAL(...) __VA_ARGS__
#else
#define ENCORE_IF_SERIAL(...)
#endif
#if defined(KOKKOS_ENABLE_OPENMP)
#define ENCORE_IF_OPENMP(...) __VA_ARGS__
#else
#define ENCORE_IF_OPENMP(...)
#endif
#if defined(KOKKOS_ENABLE_CUDA)
#define ENCORE_IF_CUDA(...) __VA_ARGS__
#else
#define ENCORE_IF_CUDA(...)
#endif

#define ENCORE_FOR_EACH_SPACE(M)        \
  ENCORE_IF_SERIAL(M(::Kokkos::Serial)) \
  ENCORE_IF_OPENMP(M(::Kokkos::OpenMP)) \
  ENCORE_IF_CUDA(M(::Kokkos::Cuda))

#define ENCORE_FOR_EACH_SPACE_AND_TYPE(M)                            \
  ENCORE_IF_SERIAL(M(::Kokkos::Serial, double))                      \
  ENCORE_IF_SERIAL(M(::Kokkos::Serial, float))                       \
  ENCORE_IF_SERIAL(M(::Kokkos::Serial, ::encore::backend::bfloat16)) \
  ENCORE_IF_OPENMP(M(::Kokkos::OpenMP, float))                       \
  ENCORE_IF_OPENMP(M(::Kokkos::OpenMP, ::encore::backend::bfloat16)) \
  ENCORE_IF_CUDA(M(::Kokkos::Cuda, float))                           \
  ENCORE_IF_CUDA(M(::Kokkos::Cuda, ::encore::backend::bfloat16))

/// Weight type and gradient type: bfloat16 weights may keep float32 gradients.
#define ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(M)                                                \
  ENCORE_IF_SERIAL(M(::Kokkos::Serial, double, double))                                           \
  ENCORE_IF_SERIAL(M(::Kokkos::Serial, float, float))                                             \
  ENCORE_IF_SERIAL(M(::Kokkos::Serial, ::encore::backend::bfloat16, ::encore::backend::bfloat16)) \
  ENCORE_IF_SERIAL(M(::Kokkos::Serial, ::encore::backend::bfloat16, float))                       \
  ENCORE_IF_OPENMP(M(::Kokkos::OpenMP, float, float))                                             \
  ENCORE_IF_OPENMP(M(::Kokkos::OpenMP, ::encore::backend::bfloat16, ::encore::backend::bfloat16)) \
  ENCORE_IF_OPENMP(M(::Kokkos::OpenMP, ::encore::backend::bfloat16, float))                       \
  ENCORE_IF_CUDA(M(::Kokkos::Cuda, float, float))                                                 \
  ENCORE_IF_CUDA(M(::Kokkos::Cuda, ::encore::backend::bfloat16, ::encore::backend::bfloat16))     \
  ENCORE_IF_CUDA(M(::Kokkos::Cuda, ::encore::backend::bfloat16, float))
