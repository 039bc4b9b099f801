// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/stream.hpp>

#include <string_view>

namespace encore::backend {

/// What a stretch of time is spent on.
enum class RegionKind { segment, step, data, evaluation, capture, record, instantiate, replay };
inline constexpr int region_kinds = 8;
/// `step`, `replay`, ...; empty for a segment, whose name says it.
std::string_view name_of(RegionKind kind);

/// A named stretch of time on the calling thread, for whoever watches: a region of Kokkos Tools, `encore::replay::NAME`
/// or, for a segment, `encore::NAME`, and in builds with CUDA a range `replay::NAME` in the NVTX domain `Encore`.
/// Where nobody watches it costs two loads. Regions nest. In a recording they open when it is made, without the
/// fences that Kokkos puts before a tool's callbacks, which no CUDA graph may contain; a replay has one region in all.
/// Not in the prime and list modes, which run nothing. Never throws.
class Region {
 public:
  template <class Space>
  Region(const Stream<Space>& stream, RegionKind kind, std::string_view name = {}) {
    if (!stream.runs_nothing()) open(kind, name, stream.mode() == StreamMode::record);
  }
  ~Region() {
    if (tool_ || range_) close();
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  void open(RegionKind kind, std::string_view name, bool recording) noexcept;
  void close() noexcept;

  bool recording_ = false;
  bool tool_ = false;   ///< a region of Kokkos Tools is open
  bool range_ = false;  ///< an NVTX range is
};

}  // namespace encore::backend
