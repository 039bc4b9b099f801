// SPDX-License-Identifier: Apache-2.0
#include "nvtx_ranges.hpp"
#include "tool_callbacks.hpp"

#include <encore/backend/region.hpp>

#include <array>
#include <string>

namespace encore::backend {

std::string_view name_of(RegionKind kind) {
  constexpr std::array<std::string_view, region_kinds> names{"",        "step",   "data",        "evaluation",
                                                             "capture", "record", "instantiate", "replay"};
  return names[static_cast<std::size_t>(kind)];
}

void Region::open(RegionKind kind, std::string_view name, bool recording) noexcept {
  recording_ = recording;
  tool_ = recording ? impl::loaded_callbacks().push_region != nullptr : Kokkos::Tools::profileLibraryLoaded();
  range_ = impl::nvtx_listens();
  if (!tool_ && !range_) return;
  constexpr std::string_view prefix = "encore::";
  std::string whole(prefix);
  whole += name_of(kind);
  if (kind != RegionKind::segment && !name.empty()) whole += "::";
  whole += name;
  if (range_) impl::push_nvtx_range(kind, whole.c_str() + prefix.size());
  if (!tool_) return;
  if (!recording) return Kokkos::Tools::pushRegion(whole);
  impl::loaded_callbacks().push_region(whole.c_str());
}

void Region::close() noexcept {
  if (tool_ && !recording_) Kokkos::Tools::popRegion();
  if (tool_ && recording_ && impl::loaded_callbacks().pop_region != nullptr)
    impl::loaded_callbacks().pop_region();
  if (range_) impl::pop_nvtx_range();
}

}  // namespace encore::backend
