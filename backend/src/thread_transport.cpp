// SPDX-License-Identifier: Apache-2.0
#include "thread_group.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/thread_transport.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

namespace encore::backend {

namespace {

using Kind = impl::ThreadCallKind;
using Call = impl::ThreadCall;
using impl::ThreadGroup;
using impl::ThreadMessage;

/// What sums are formed in.
template <class T>
using Wide = std::conditional_t<std::is_integral_v<T>, T, Accumulator<T>>;

/// Calls `body.operator()<T>()` for the element type; other types are not reduced.
template <class Body>
void with_type(DataType type, const Body& body) {
  switch (type) {
    case DataType::float32: return body.template operator()<float>();
    case DataType::float64: return body.template operator()<double>();
    case DataType::bfloat16: return body.template operator()<bfloat16>();
    case DataType::int32: return body.template operator()<std::int32_t>();
    case DataType::int64: return body.template operator()<std::int64_t>();
    case DataType::uint8:
    case DataType::uint64: break;
  }
  throw InternalError("elements of " + std::string(name_of(type)) + " cannot be reduced");
}

/// Reduces the elements [begin, end) of all sends, in the order of the ranks, and hands each block of results to
/// `store(first element, results, count)`.
template <class T, class Store>
void reduce(const std::vector<Call>& calls, std::size_t begin, std::size_t end, const Store& store) {
  constexpr std::size_t block = 512;
  std::array<Wide<T>, block> totals;
  std::array<T, block> results;
  const bool sums = calls[0].reduction == Reduction::sum;
  for (std::size_t first = begin; first < end; first += block) {
    const std::size_t count = std::min(block, end - first);
    for (std::size_t rank = 0; rank < calls.size(); ++rank) {
      const T* values = reinterpret_cast<const T*>(calls[rank].send) + first;
      for (std::size_t i = 0; i < count; ++i) {
        const auto value = static_cast<Wide<T>>(values[i]);
        totals[i] = rank == 0 ? value : sums ? totals[i] + value : std::max(totals[i], value);
      }
    }
    for (std::size_t i = 0; i < count; ++i) results[i] = static_cast<T>(totals[i]);
    store(first, results.data(), count);
  }
}

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~ThreadTransport() override { close(); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  std::string description() const override { return "threads of one process"; }

  void all_reduce(const void* send, void* receive, std::size_t count, DataType type, Reduction reduction,
                  void*) override {
    // Each rank reduces its share of the elements and tells all: nobody else reads or writes those.
    together(
        Kind::all_reduce, send, receive, count, type,
        [&](const std::vector<Call>& calls) {
          with_type(type, [&]<class T>() {
            reduce<T>(calls, share_begin(count, rank_), share_begin(count, rank_ + 1),
                      [&](std::size_t first, const T* results, std::size_t block) {
                        for (const Call& call : calls)
                          std::memcpy(reinterpret_cast<T*>(call.receive) + first, results, block * sizeof(T));
                      });
          });
        },
        reduction);
  }

  void reduce_scatter(const void* send, void* receive, std::size_t count, DataType type, Reduction reduction,
                      void*) override {
    together(
        Kind::reduce_scatter, send, receive, count, type,
        [&](const std::vector<Call>& calls) {
          with_type(type, [&]<class T>() {
            const std::size_t begin = static_cast<std::size_t>(rank_) * count;
            reduce<T>(calls, begin, begin + count,
                      [&](std::size_t first, const T* results, std::size_t block) {
                        std::memcpy(static_cast<T*>(receive) + (first - begin), results, block * sizeof(T));
                      });
          });
        },
        reduction);
  }

  void all_gather(const void* send, void* receive, std::size_t count, DataType type, void*) override {
    together(Kind::all_gather, send, receive, count, type, [&](const std::vector<Call>& calls) {
      const std::size_t bytes = count * size_of(type);
      for (std::size_t other = 0; other < calls.size(); ++other)
        copy(static_cast<std::byte*>(receive) + other * bytes, calls[other].send, bytes);
    });
  }

  void broadcast(void* data, std::size_t count, DataType type, int root, void*) override {
    together(
        Kind::broadcast, data, data, count, type,
        [&](const std::vector<Call>& calls) {
          copy(static_cast<std::byte*>(data), calls[static_cast<std::size_t>(root)].send,
               count * size_of(type));
        },
        Reduction::sum, root);
  }

  void all_to_all(const void* send, void* receive, std::size_t count, DataType type, void*) override {
    together(Kind::all_to_all, send, receive, count, type, [&](const std::vector<Call>& calls) {
      const std::size_t bytes = count * size_of(type);
      for (std::size_t other = 0; other < calls.size(); ++other)
        copy(static_cast<std::byte*>(receive) + other * bytes,
             calls[other].send + static_cast<std::size_t>(rank_) * bytes, bytes);
    });
  }

  void send(const void* data, std::size_t count, DataType type, int to, void*) override {
    ThreadMessage message = sent(data, count, type);
    group_->exchange(rank_, &message, to, nullptr, 0);
  }
  void receive(void* data, std::size_t count, DataType type, int from, void*) override {
    ThreadMessage message{static_cast<std::byte*>(data), count, type};
    group_->exchange(rank_, nullptr, 0, &message, from);
  }
  void send_receive(const void* send, std::size_t send_count, int to, void* receive,
                    std::size_t receive_count, int from, DataType type, void*) override {
    ThreadMessage out = sent(send, send_count, type);
    ThreadMessage in{static_cast<std::byte*>(receive), receive_count, type};
    group_->exchange(rank_, &out, to, &in, from);
  }

  std::shared_ptr<Transport> split(std::string name, int color, int key) override {
    auto [group, rank] = group_->split(rank_, name, color, key);
    if (!group) return nullptr;
    return std::make_shared<ThreadTransport>(std::move(group), rank);
  }

  void close() override {
    if (!std::exchange(closed_, true)) group_->leave(rank_);
  }

 private:
  /// A message that is sent is only read.
  static ThreadMessage sent(const void* data, std::size_t count, DataType type) {
    return {const_cast<std::byte*>(static_cast<const std::byte*>(data)), count, type};
  }
  static void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, bytes);
  }

  std::size_t share_begin(std::size_t count, int rank) const {
    return count * static_cast<std::size_t>(rank) / static_cast<std::size_t>(size());
  }

  template <class Work>
  void together(Kind kind, const void* send, void* receive, std::size_t count, DataType type,
                const Work& work, Reduction reduction = Reduction::sum, int root = 0) {
    group_->together(rank_,
                     {kind, static_cast<const std::byte*>(send), static_cast<std::byte*>(receive), count,
                      type, reduction, root},
                     work);
  }

  const std::shared_ptr<ThreadGroup> group_;
  const int rank_;
  bool closed_ = false;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> thread_transports(std::string name, int ranks,
                                                          std::chrono::milliseconds patience) {
  require<ConfigurationError>(ranks > 0, "a group of threads needs at least one rank");
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  const auto group = std::make_shared<ThreadGroup>(std::make_shared<impl::ThreadJob>(patience), name, name,
                                                   std::move(members));
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank)
    transports.push_back(std::make_shared<ThreadTransport>(group, rank));
  return transports;
}

}  // namespace encore::backend
