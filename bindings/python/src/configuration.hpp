// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/c/configuration.h>

namespace encore::python {

class Configuration {
 public:
  Configuration();
  ~Configuration();
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;

  encore_configuration* get() const { return configuration_; }

 private:
  encore_configuration* configuration_ = nullptr;
};

}  // namespace encore::python
