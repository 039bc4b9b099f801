// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/contract_rules.hpp>
#include <encore/graph/scalars.hpp>

#include <algorithm>
#include <cstring>

namespace encore::graph {

template <class Space>
Scalars<Space>::Scalars(backend::Stream<Space>& stream, std::vector<std::string> names,
                        std::map<std::string, std::string, std::less<>> fixed)
    : names_(std::move(names)),
      fixed_(std::move(fixed)),
      values_(names_.size(), 0.0),
      device_("scalars", names_.size() * sizeof(double)),
      staging_("scalars", slots * names_.size() * sizeof(double)),
      copied_(slots) {
  upload(stream);
}

template <class Space>
std::size_t Scalars<Space>::index(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
  std::string known;
  for (const std::string& each : names_) known += (known.empty() ? "" : ", ") + each;
  throw ReplayContractError(std::string(rule_scalar.id) + ": no scalar is called '" + std::string(name) +
                            "'; there are " + known);
}

template <class Space>
void Scalars<Space>::set(std::string_view name, double value) {
  if (const auto reason = fixed_.find(name); reason != fixed_.end())
    throw ReplayContractError(std::string(rule_scalar.id) + ": '" + std::string(name) +
                              "' cannot change between steps: " + reason->second);
  values_[index(name)] = value;
}

template <class Space>
double Scalars<Space>::get(std::string_view name) const {
  return values_[index(name)];
}

template <class Space>
const double* Scalars<Space>::device(std::string_view name) const {
  return reinterpret_cast<const double*>(device_.data()) + index(name);
}

template <class Space>
void Scalars<Space>::upload(backend::Stream<Space>& stream) {
  const std::size_t bytes = values_.size() * sizeof(double);
  copied_[next_slot_].wait(stream);
  std::byte* slot = staging_.data() + next_slot_ * bytes;
  std::memcpy(slot, values_.data(), bytes);
  stream.copy_to_device(device_.data(), slot, bytes, "scalars");
  copied_[next_slot_].record(stream);
  next_slot_ = (next_slot_ + 1) % slots;
}

#define ENCORE_INSTANTIATE(SPACE) template class Scalars<SPACE>;
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::graph
