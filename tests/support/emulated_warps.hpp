// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/bfloat16.hpp>

#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace encore::tests {

/// Runs kernels that are written for the warps and matrix units of a GPU on a host, to check where they find and put
/// things. The threads of a team are contexts that take turns at barriers, in an order that a seed decides: a kernel
/// that lacks a barrier gives other results in another order. One at a time.
class EmulatedTeams {
 public:
  /// `threads`: of a team, a multiple of 32.
  explicit EmulatedTeams(unsigned seed, int threads = 256)
      : threads_(threads),
        order_(seed),
        contexts_(static_cast<std::size_t>(threads)),
        lanes_(static_cast<std::size_t>(threads)) {
    for (int thread = 0; thread < threads; ++thread)
      stacks_.push_back(std::make_unique<std::byte[]>(stack_bytes));
    current_machine() = this;
  }
  ~EmulatedTeams() { current_machine() = nullptr; }
  EmulatedTeams(const EmulatedTeams&) = delete;
  EmulatedTeams& operator=(const EmulatedTeams&) = delete;

  class Team {
   public:
    Team(std::int64_t league_rank, int rank, EmulatedTeams& machine)
        : league_rank_(league_rank), rank_(rank), machine_(&machine) {}
    std::int64_t league_rank() const { return league_rank_; }
    int rank() const { return rank_; }
    int size() const { return machine_->threads_; }
    void barrier() const { machine_->wait(machine_->team_); }
    template <class T>
    T* scratch() const {
      return reinterpret_cast<T*>(machine_->scratch_begin());
    }

   private:
    std::int64_t league_rank_;
    int rank_;
    EmulatedTeams* machine_;
  };

  /// As backend::launch with Teams. Scratch starts as NaN.
  template <class Functor>
  void launch(std::int64_t league, std::size_t scratch_bytes, const Functor& functor) {
    for (std::int64_t team = 0; team < league; ++team) {
      scratch_.assign(scratch_bytes + alignment, std::byte{0xff});
      body_ = [&, team](int rank) { functor(Team(team, rank, *this)); };
      run();
    }
  }

  /// backend::MatrixUnits, of its definitions.
  struct Units {
    static void load(std::uint32_t (&registers)[4], const backend::bfloat16* row) {
      current_machine()->load(registers, row, false);
    }
    static void load_transposed(std::uint32_t (&registers)[4], const backend::bfloat16* row) {
      current_machine()->load(registers, row, true);
    }
    static void multiply(float (&sums)[4], const std::uint32_t (&first)[4], std::uint32_t upper,
                         std::uint32_t lower) {
      current_machine()->multiply(sums, first, upper, lower);
    }
    static float sum_of_quad(float value) { return current_machine()->butterfly(value, 1, 4); }
    static float sum_of_rows(float value) { return current_machine()->butterfly(value, 4, 32); }
    static float max_of_quad(float value) {
      return current_machine()->butterfly(value, 1, 4, [](float a, float b) { return a > b ? a : b; });
    }
    template <int Lanes>
    static float sum_of_neighbours(float value) {
      return current_machine()->butterfly(value, 1, Lanes);
    }
    static float exp2(float value) { return std::exp2(value); }
    static void copy_async(float* to, const float* from, bool exists) {
      current_machine()->check_scratch(to, sizeof(float));
      *to = exists ? *from : 0.0F;
    }
    static void copy_async(backend::bfloat16* to, const backend::bfloat16* from, bool exists) {
      current_machine()->check_scratch(to);
      if (exists && reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
        throw std::runtime_error("a copy from an address that is not aligned");
      for (int i = 0; i < 8; ++i) to[i] = exists ? from[i] : backend::bfloat16(0.0F);
    }
    static void wait_for_copies() {}
    static std::uint32_t pack(float first, float second) {
      return backend::bfloat16(first).bits | static_cast<std::uint32_t>(backend::bfloat16(second).bits) << 16;
    }
  };

 private:
  static constexpr std::size_t stack_bytes = std::size_t(256) << 10;
  static constexpr std::size_t alignment = 64;
  struct Barrier {
    int size = 0, arrived = 0;
    std::int64_t passed = 0;
  };
  /// What a thread shows to the others of its warp.
  struct Lane {
    const backend::bfloat16* row;
    std::uint32_t first[4], second[2];
    float value;
  };

  static EmulatedTeams*& current_machine() {
    static EmulatedTeams* machine = nullptr;
    return machine;
  }

  std::byte* scratch_begin() {
    const auto address = reinterpret_cast<std::uintptr_t>(scratch_.data());
    return reinterpret_cast<std::byte*>((address + alignment - 1) / alignment * alignment);
  }
  void check_scratch(const void* address, std::size_t bytes = 16) {
    const auto* byte = static_cast<const std::byte*>(address);
    if (byte < scratch_begin() || byte + bytes > scratch_begin() + scratch_.size() - alignment ||
        reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
      throw std::runtime_error("an address that is outside of scratch, or not aligned");
  }

  static void enter() {
    EmulatedTeams& machine = *current_machine();
    const int thread = machine.running_;
    try {
      machine.body_(thread);
    } catch (...) {
      machine.failure_ = std::current_exception();
    }
    machine.done_[static_cast<std::size_t>(thread)] = true;
    machine.leave();
  }

  void leave() { swapcontext(&contexts_[static_cast<std::size_t>(running_)], &main_); }

  void run() {
    const int threads = threads_;
    done_.assign(static_cast<std::size_t>(threads), false);
    failure_ = nullptr;
    team_ = {threads};
    warps_.assign(static_cast<std::size_t>(threads / 32), Barrier{32});
    for (int thread = 0; thread < threads; ++thread) {
      ucontext_t& context = contexts_[static_cast<std::size_t>(thread)];
      getcontext(&context);
      context.uc_stack.ss_sp = stacks_[static_cast<std::size_t>(thread)].get();
      context.uc_stack.ss_size = stack_bytes;
      context.uc_link = nullptr;
      makecontext(&context, &EmulatedTeams::enter, 0);
    }
    for (int left = threads; left > 0;) {
      left = 0;
      const unsigned turn = static_cast<unsigned>(order_());  // Which warps go on this time.
      for (int thread = 0; thread < threads; ++thread) {
        if (done_[static_cast<std::size_t>(thread)]) continue;
        ++left;
        if ((turn >> (thread / 32) & 1U) == 0) continue;
        running_ = thread;
        swapcontext(&main_, &contexts_[static_cast<std::size_t>(thread)]);
        if (failure_) std::rethrow_exception(failure_);
      }
    }
  }

  void wait(Barrier& barrier) {
    const std::int64_t passed = barrier.passed;
    if (++barrier.arrived == barrier.size) {
      barrier.arrived = 0;
      ++barrier.passed;
    }
    while (barrier.passed == passed) leave();
  }
  void wait_for_warp() { wait(warps_[static_cast<std::size_t>(running_ / 32)]); }
  Lane& lane_of_warp(int lane) { return lanes_[static_cast<std::size_t>(running_ / 32 * 32 + lane)]; }

  void load(std::uint32_t (&registers)[4], const backend::bfloat16* row, bool transposed) {
    check_scratch(row);
    const int lane = running_ % 32, g = lane / 4, q = lane % 4 * 2;
    lane_of_warp(lane).row = row;
    wait_for_warp();
    for (int j = 0; j < 4; ++j) {
      const auto at = [&](int r, int c) { return std::uint32_t{lane_of_warp(8 * j + r).row[c].bits}; };
      registers[j] = transposed ? at(q, g) | at(q + 1, g) << 16 : at(g, q) | at(g, q + 1) << 16;
    }
    wait_for_warp();
  }

  static float half(std::uint32_t pair, int which) {
    backend::bfloat16 value;
    value.bits = static_cast<std::uint16_t>(pair >> 16 * which);
    return static_cast<float>(value);
  }

  void multiply(float (&sums)[4], const std::uint32_t (&first)[4], std::uint32_t upper, std::uint32_t lower) {
    const int lane = running_ % 32;
    Lane& own = lane_of_warp(lane);
    for (int i = 0; i < 4; ++i) own.first[i] = first[i];
    own.second[0] = upper;
    own.second[1] = lower;
    wait_for_warp();
    const auto a = [&](int row, int k) {
      return half(lane_of_warp(row % 8 * 4 + k % 8 / 2).first[row / 8 + k / 8 * 2], k % 2);
    };
    const auto b = [&](int k, int column) {
      return half(lane_of_warp(column * 4 + k % 8 / 2).second[k / 8], k % 2);
    };
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 16; ++k) sums[i] += a(lane / 4 + i / 2 * 8, k) * b(k, lane % 4 * 2 + i % 2);
    wait_for_warp();
  }

  float butterfly(float value, int from, int to) {
    return butterfly(value, from, to, [](float a, float b) { return a + b; });
  }
  template <class Operation>
  float butterfly(float value, int from, int to, const Operation& operation) {
    const int lane = running_ % 32;
    for (int distance = from; distance < to; distance *= 2) {
      lane_of_warp(lane).value = value;
      wait_for_warp();
      const float other = lane_of_warp(lane ^ distance).value;
      wait_for_warp();
      value = operation(value, other);
    }
    return value;
  }

  int threads_;
  std::mt19937 order_;
  std::vector<ucontext_t> contexts_;
  ucontext_t main_{};
  std::vector<std::unique_ptr<std::byte[]>> stacks_;
  std::vector<Lane> lanes_;
  std::vector<bool> done_;
  std::vector<Barrier> warps_;
  Barrier team_;
  std::vector<std::byte> scratch_;
  std::function<void(int)> body_;
  std::exception_ptr failure_;
  int running_ = 0;
};

}  // namespace encore::tests
