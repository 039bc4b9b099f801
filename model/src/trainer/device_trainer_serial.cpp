// SPDX-License-Identifier: Apache-2.0
#include "device_trainer_impl.hpp"

namespace encore::model {

ENCORE_IF_SERIAL(template std::unique_ptr<Trainer> make_device_trainer<Kokkos::Serial>(const Configuration&,
                                                                                       const RankGroups&);)

}  // namespace encore::model
