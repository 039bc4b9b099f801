// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/thread_transport.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

namespace encore::backend {

namespace {

enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all };

const char* name_of(Kind kind) {
  constexpr std::array names{"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"};
  return names[static_cast<std::size_t>(kind)];
}

/// What a rank asks for.
struct Call {
  Kind kind;
  const std::byte* send;
  std::byte* receive;
  std::size_t count;
  DataType type;
  Reduction reduction = Reduction::sum;
  int root = 0;

  bool fits(const Call& other) const {
    return kind == other.kind && count == other.count && type == other.type && reduction == other.reduction &&
           root == other.root;
  }
  std::string text() const {
    return std::string(name_of(kind)) + " of " + std::to_string(count) + " elements of " +
           std::string(backend::name_of(type));
  }
};

/// Where the ranks meet.
class Group {
 public:
  Group(std::string name, int ranks, std::chrono::milliseconds patience)
      : name_(std::move(name)),
        patience_(patience),
        calls_(static_cast<std::size_t>(ranks)),
        arrived_(static_cast<std::size_t>(ranks), false) {}

  int size() const { return static_cast<int>(calls_.size()); }

  /// Runs `work(calls)` on every rank once all have called, and returns when all have done theirs.
  template <class Work>
  void together(int rank, const Call& call, const Work& work) {
    meet(rank, call, &call);
    for (std::size_t other = 0; other < calls_.size(); ++other)
      if (!calls_[other].fits(calls_[0])) {
        const std::string sentence = "the ranks of '" + name_ + "' do not do the same: rank 0 calls " +
                                     calls_[0].text() + ", rank " + std::to_string(other) + " " +
                                     calls_[other].text();
        end(sentence);
        throw CommunicationError(sentence);
      }
    try {
      work(calls_);
    } catch (...) {
      leave(rank);
      throw;
    }
    meet(rank, call, nullptr);
  }

  void leave(int rank) { end("rank " + std::to_string(rank) + " of '" + name_ + "' has left the group"); }

 private:
  /// `announced`: what the others are to see; without it they may still be reading what was.
  void meet(int rank, const Call& call, const Call* announced) {
    std::unique_lock lock(mutex_);
    if (failure_) throw CommunicationError(*failure_);
    if (announced != nullptr) calls_[static_cast<std::size_t>(rank)] = *announced;
    arrived_[static_cast<std::size_t>(rank)] = true;
    if (std::ranges::find(arrived_, false) == arrived_.end()) {
      arrived_.assign(arrived_.size(), false);
      ++meetings_;
      changed_.notify_all();
      return;
    }
    const std::uint64_t meeting = meetings_;
    const auto over = [&] { return meetings_ != meeting || failure_; };
    if (!changed_.wait_for(lock, patience_, over)) {
      failure_ = late_ranks(call);
      changed_.notify_all();
    }
    if (meetings_ == meeting) throw CommunicationError(*failure_);
  }

  std::string late_ranks(const Call& call) const {
    std::string late;
    for (std::size_t rank = 0; rank < arrived_.size(); ++rank)
      if (!arrived_[rank]) late += (late.empty() ? "rank " : ", rank ") + std::to_string(rank);
    return late + " of '" + name_ + "' did not come to " + call.text() + " within " +
           std::to_string(patience_.count()) + " ms";
  }

  void end(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = why;
    changed_.notify_all();
  }

  const std::string name_;
  const std::chrono::milliseconds patience_;

  std::mutex mutex_;  ///< for what follows; calls_ are read without it between two meetings
  std::condition_variable changed_;
  std::vector<Call> calls_;
  std::vector<bool> arrived_;
  std::uint64_t meetings_ = 0;
  std::optional<std::string> failure_;
};

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
  ThreadTransport(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
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

  void close() override {
    if (!std::exchange(closed_, true)) group_->leave(rank_);
  }

 private:
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

  const std::shared_ptr<Group> group_;
  const int rank_;
  bool closed_ = false;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> thread_transports(std::string name, int ranks,
                                                          std::chrono::milliseconds patience) {
  require<ConfigurationError>(ranks > 0, "a group of threads needs at least one rank");
  const auto group = std::make_shared<Group>(std::move(name), ranks, patience);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank)
    transports.push_back(std::make_shared<ThreadTransport>(group, rank));
  return transports;
}

}  // namespace encore::backend
