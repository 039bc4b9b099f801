// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/blas.hpp>
#include <encore/backend/launch.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "spaces.hpp"

using namespace encore::backend;

namespace {

/// An address that no memory stands behind.
template <class T>
T* imaginary() {
  return reinterpret_cast<T*>(std::uintptr_t{1} << 40);
}

}  // namespace

namespace encore::tests {

struct Touch {
  float* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] = 1.0F; }
};

struct TouchByTeam {
  float* data;
  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    data[team.league_rank()] = 1.0F;
  }
};

}  // namespace encore::tests

TEST_CASE_TEMPLATE("list mode collects labels, and touches no memory, whatever is launched", Space,
                   ENCORE_TEST_SPACES) {
  using namespace encore::tests;
  Stream<Space> stream;
  Blas<Space> blas(stream);
  std::vector<std::string> labels;
  auto* data = imaginary<float>();
  {
    const ModeScope<Space> list(stream, StreamMode::list);
    stream.collect_labels(&labels);
    launch(stream, "range", {write(data, 8)}, Range{8}, Touch{data});
    launch(stream, "teams", {write(data, 8)}, Teams<32>{8, 64}, TouchByTeam{data});
    launch(stream, "nothing", {}, Range{0}, Touch{data});
    stream.clear(data, 32, "clear");
    stream.copy(data, data + 16, 32, "copy");
    const MatrixOperand<const float> operand{data, 4, 4, 4};
    blas.template multiply<float, float>(stream, "product", Transpose::no, operand, Transpose::yes, operand,
                                         MatrixOperand<float>{data + 64, 4, 4, 4});
    stream.copy_to_host(nullptr, data, 32, "to host");
    stream.synchronize("waiting");
    stream.collect_labels(nullptr);
  }
  CHECK(labels == std::vector<std::string>{"range", "teams", "clear", "copy", "product"});
  CHECK(stream.counters().synchronizations == 0);
  CHECK(stream.counters().host_copies == 0);
  CHECK(stream.mode() == StreamMode::execute);
}
