// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "blas_portable.hpp"

#include <string>

namespace encore::backend::impl {

#if ENCORE_HAVE_OPENBLAS

/// Whether OpenBLAS may be called by several threads at once, computes right on this processor and runs kernels at least
/// as wide as the portable one. If so sets OpenBLAS to one thread: tiles are spread over the threads by the caller.
bool openblas_usable();

/// Version and kernel of OpenBLAS, such as "OpenBLAS 0.3.21 (SkylakeX)"; empty when it is not compiled in.
std::string openblas_description();

/// Computes one tile by a single-threaded call. May be called from several threads at once.
void openblas_tile(const HostProduct<float, float>& product, const ProductTile& tile);
void openblas_tile(const HostProduct<double, double>& product, const ProductTile& tile);

#else

inline bool openblas_usable() { return false; }
inline std::string openblas_description() { return {}; }
template <class T>
void openblas_tile(const HostProduct<T, T>&, const ProductTile&) {}

#endif

}  // namespace encore::backend::impl
