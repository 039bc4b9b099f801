// SPDX-License-Identifier: Apache-2.0
#include "nvtx_ranges.hpp"

#if ENCORE_HAVE_CUDA
#include <nvtx3/nvtx3.hpp>

#include <array>
#endif

namespace encore::backend::impl {

#if ENCORE_HAVE_CUDA

namespace {

struct Domain {
  static constexpr const char* name = "Encore";
};

nvtx3::color color_of(RegionKind kind) {
  constexpr std::array<std::uint32_t, region_kinds> colors{0xff4c78a8, 0xff9d9da1, 0xff72b7b2, 0xffb279a2,
                                                           0xffe45756, 0xfff58518, 0xffeeca3b, 0xff54a24b};
  return nvtx3::color{colors[static_cast<std::size_t>(kind)]};
}

}  // namespace

// Without a tool the library gives out no domain.
bool nvtx_listens() noexcept { return nvtxDomainHandle_t(nvtx3::domain::get<Domain>()) != nullptr; }

void push_nvtx_range(RegionKind kind, const char* name) noexcept {
  const nvtx3::event_attributes attributes{nvtx3::message{name}, color_of(kind)};
  nvtxDomainRangePushEx(nvtx3::domain::get<Domain>(), attributes.get());
}

void pop_nvtx_range() noexcept { nvtxDomainRangePop(nvtx3::domain::get<Domain>()); }

#else

bool nvtx_listens() noexcept { return false; }
void push_nvtx_range(RegionKind, const char*) noexcept {}
void pop_nvtx_range() noexcept {}

#endif

}  // namespace encore::backend::impl
