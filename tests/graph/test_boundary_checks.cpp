// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/boundary_checks.hpp>

#include "chain_program.hpp"

#include <limits>

using namespace encore;
using namespace encore::graph;
using encore::kernels::Checksum;
using encore::tests::ChainProgram;
using encore::tests::TestArray;

namespace {

/// A checked chain under a policy.
template <class Space>
struct CheckedChain {
  backend::Device<Space> device{1};
  ChainProgram<Space> chain{device, 4};
  CheckedProgram<Space> checked = with_boundary_checks(chain.program);
  MemoryPlan plan = plan_memory(checked.program.outline());
  backend::Allocation<Space> arena{"arena", plan.arena_bytes};
  TestArray<Space, std::uint64_t> ring{device.stream(), std::vector<std::uint64_t>(ring_words(), 0)};
  TestArray<Space, std::int64_t> slot{device.stream(), {0}};
  Executor<Space> executor;

  explicit CheckedChain(const CapturePolicy& policy)
      : executor(device, checked.program, bindings(), policy) {}

  std::size_t ring_words() const {
    return static_cast<std::size_t>(checked.program.outline().buffer(checked.ring).elements());
  }
  Bindings bindings() const {
    Bindings result(checked.program.outline());
    const Bindings plain = chain.bindings();
    const std::vector<BufferId> ids{chain.rate, chain.input, chain.output, chain.total};
    for (const BufferId id : ids) result.bind(id, plain.address(id));
    result.bind(checked.ring, reinterpret_cast<std::byte*>(ring.data()));
    result.bind(checked.slot, reinterpret_cast<std::byte*>(slot.data()));
    result.bind_arena(plan, arena.data());
    return result;
  }
  /// Of the step done last.
  std::vector<Checksum> rows() const {
    constexpr std::int64_t slots = CheckedProgram<Space>::slots;
    const std::int64_t last = (slot.get()[0] + slots - 1) % slots;
    const auto words = ring.get();
    std::vector<Checksum> result;
    for (std::size_t row = 0; row < checked.boundaries.size(); ++row) {
      const std::uint64_t* at =
          words.data() + 4 * (static_cast<std::size_t>(last) * checked.boundaries.size() + row);
      result.push_back({at[0], at[1], at[2], at[3]});
    }
    return result;
  }
};

const CapturePolicy eager{};
const CapturePolicy whole{CaptureScope::full_iteration, {}, OptimizerCapture::separate, 0};
const CapturePolicy layers{CaptureScope::layer, {}, OptimizerCapture::separate, 0};

}  // namespace

TEST_CASE_TEMPLATE(
    "checksums of eager and replayed steps agree over many steps, and change from step to step", Space,
    ENCORE_TEST_SPACES) {
  CheckedChain<Space> one(eager), other(whole), third(layers);
  std::vector<Checksum> before;
  for (int step = 0; step < 9; ++step) {
    for (auto* chain : {&one, &other, &third}) {
      chain->chain.set_rate(0.5 * step);
      chain->executor.step();
    }
    const auto rows = one.rows();
    CHECK(rows.size() == 5);
    CHECK(rows == other.rows());
    CHECK(rows == third.rows());
    CHECK(first_difference(one.checked.boundaries, rows, other.rows()).empty());
    if (!before.empty())
      CHECK(first_difference(one.checked.boundaries, before, rows) ==
            "what segment 'layer.0/mlp/forward' wrote differs first");
    CHECK(rows[0].elements == 37);
    before = rows;
  }
}

TEST_CASE_TEMPLATE("the first segment that writes something infinite is named", Space, ENCORE_TEST_SPACES) {
  CheckedChain<Space> chain(whole);
  chain.chain.set_input(1.5e308 / 4);  // doubles: the third segment leaves the range of float64
  chain.executor.step();
  chain.executor.step();
  CHECK(first_non_finite(chain.checked.boundaries, chain.rows()) ==
        "segment 'layer.2/mlp/forward' wrote 37 values of 37 that are not finite");
  chain.chain.set_input(1.0);
  chain.executor.step();
  const auto rows = chain.rows();
  CHECK(rows[3].non_finite == 0);
  CHECK(rows[4].non_finite == 37);  // the running total stays what it has become
}

TEST_CASE_TEMPLATE("the largest magnitude is the one of the values", Space, ENCORE_TEST_SPACES) {
  CheckedChain<Space> chain(eager);
  chain.chain.set_input(-3.0);
  chain.executor.step();
  CHECK(std::bit_cast<double>(chain.rows()[0].largest_bits) == 6.0);
}
