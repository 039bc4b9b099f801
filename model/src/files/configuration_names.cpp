// SPDX-License-Identifier: Apache-2.0
#include "configuration_names.hpp"

namespace encore::model {
namespace {

template <class Enumeration>
std::string_view name(Enumeration value) noexcept {
  return names_of<Enumeration>[static_cast<std::size_t>(value)];
}

}  // namespace

std::string_view name_of(Normalization value) noexcept { return name(value); }
std::string_view name_of(Activation value) noexcept { return name(value); }
std::string_view name_of(Position value) noexcept { return name(value); }
std::string_view name_of(RouterScore value) noexcept { return name(value); }
std::string_view name_of(Precision value) noexcept { return name(value); }
std::string_view name_of(BackendKind value) noexcept { return name(value); }
std::string_view name_of(GraphImplementation value) noexcept { return name(value); }
std::string_view name_of(ExpertDispatch value) noexcept { return name(value); }
std::string_view name_of(GraphModule value) noexcept { return name(value); }
std::string_view name_of(RecomputeModule value) noexcept { return name(value); }
std::string_view name_of(OptimizerPlacement value) noexcept { return name(value); }
std::string_view name_of(AboveLargest value) noexcept { return name(value); }
std::string_view name_of(ProductTuning value) noexcept { return name(value); }

}  // namespace encore::model
