// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

namespace encore::backend {

/// Elements of T in one 16-byte access, the widest a GPU thread can make.
template <class T>
inline constexpr int packet_width = static_cast<int>(16 / sizeof(std::remove_const_t<T>));

/// `Width` neighbouring elements, moved as one aligned access.
template <class T, int Width>
struct alignas(sizeof(T) * Width) Packet {
  T value[Width];

  KOKKOS_FUNCTION T& operator[](int i) { return value[i]; }
  KOKKOS_FUNCTION const T& operator[](int i) const { return value[i]; }
};

/// `data + packet * Width` must be aligned to the packet.
template <int Width, class T>
KOKKOS_FUNCTION Packet<std::remove_const_t<T>, Width> load_packet(T* data, std::int64_t packet = 0) {
  return reinterpret_cast<const Packet<std::remove_const_t<T>, Width>*>(data)[packet];
}

template <int Width, class T>
KOKKOS_FUNCTION void store_packet(T* data, std::int64_t packet, const Packet<T, Width>& value) {
  reinterpret_cast<Packet<T, Width>*>(data)[packet] = value;
}

}  // namespace encore::backend
