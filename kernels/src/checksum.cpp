// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/bfloat16.hpp>
#include <encore/backend/launch.hpp>
#include <encore/kernels/checksum.hpp>

#include <algorithm>
#include <bit>

#include "shapes.hpp"

namespace encore::kernels {

namespace {

constexpr std::size_t parts_of_a_launch = 24;
constexpr std::int64_t elements_of_a_team = 16384;

/// The finalizer of MurmurHash3, over an element's bits and its place.
KOKKOS_FUNCTION std::uint64_t mix(std::uint64_t bits, std::int64_t place) {
  std::uint64_t hash = bits ^ (static_cast<std::uint64_t>(place) + 1) * 0x9E3779B97F4A7C15ULL;
  hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCDULL;
  hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53ULL;
  return hash ^ (hash >> 33);
}

KOKKOS_FUNCTION double magnitude(double value) { return value < 0 ? -value : value; }

struct Part {
  const std::byte* data;
  std::int64_t elements;
  std::int64_t first_team;
  std::int64_t number;  ///< among those of the checksum
  backend::DataType type;
};

struct AddChecksum {
  static constexpr int threads = 256;

  Part parts[parts_of_a_launch];
  int count;
  const std::int64_t* slot;
  Checksum* ring;
  std::int64_t row, rows;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    int which = count - 1;
    while (parts[which].first_team > team.league_rank()) --which;
    const Part part = parts[which];
    const std::int64_t begin = (team.league_rank() - part.first_team) * elements_of_a_team;
    const std::int64_t rest = part.elements - begin;
    const std::int64_t size = rest < elements_of_a_team ? rest : elements_of_a_team;
    using backend::DataType;
    switch (part.type) {
      case DataType::float64: return add_numbers<double, std::uint64_t>(team, part, begin, size);
      case DataType::float32: return add_numbers<float, std::uint32_t>(team, part, begin, size);
      case DataType::bfloat16: return add_numbers<backend::bfloat16, std::uint16_t>(team, part, begin, size);
      case DataType::int64:
      case DataType::uint64: return add_integers<std::uint64_t>(team, part, begin, size);
      case DataType::int32: return add_integers<std::uint32_t>(team, part, begin, size);
      case DataType::uint8: return add_integers<std::uint8_t>(team, part, begin, size);
    }
  }

 private:
  template <class Bits, class Team>
  KOKKOS_FUNCTION std::uint64_t hash_of(const Team& team, const Part& part, std::int64_t begin,
                                        std::int64_t size) const {
    const auto* bits = reinterpret_cast<const Bits*>(part.data) + begin;
    begin += part.number << 40;  // Parts that change places change the sum.
    return team.template sum_over<std::uint64_t>(
        size, [=](std::int64_t i) { return mix(static_cast<std::uint64_t>(bits[i]), begin + i); });
  }

  KOKKOS_FUNCTION void add(std::uint64_t hash, std::uint64_t non_finite, double largest,
                           std::int64_t size) const {
    Checksum& sum = ring[*slot * rows + row];
    Kokkos::atomic_add(&sum.hash, hash);
    if (non_finite > 0) Kokkos::atomic_add(&sum.non_finite, non_finite);
    Kokkos::atomic_max(&sum.largest_bits, Kokkos::bit_cast<std::uint64_t>(largest));
    Kokkos::atomic_add(&sum.elements, static_cast<std::uint64_t>(size));
  }

  template <class Number, class Bits, class Team>
  KOKKOS_FUNCTION void add_numbers(const Team& team, const Part& part, std::int64_t begin,
                                   std::int64_t size) const {
    const auto* numbers = reinterpret_cast<const Number*>(part.data) + begin;
    constexpr double largest_finite = 1.7976931348623157e308;
    const std::uint64_t hash = hash_of<Bits>(team, part, begin, size);
    const auto non_finite = team.template sum_over<std::uint64_t>(size, [=](std::int64_t i) {
      return static_cast<std::uint64_t>(!(magnitude(static_cast<double>(numbers[i])) <= largest_finite));
    });
    const double largest = team.template max_over<double>(size, 0.0, [=](std::int64_t i) {
      const double value = magnitude(static_cast<double>(numbers[i]));
      return value <= largest_finite ? value : 0.0;
    });
    if (team.rank() == 0) add(hash, non_finite, largest, size);
  }

  template <class Bits, class Team>
  KOKKOS_FUNCTION void add_integers(const Team& team, const Part& part, std::int64_t begin,
                                    std::int64_t size) const {
    const std::uint64_t hash = hash_of<Bits>(team, part, begin, size);
    if (team.rank() == 0) add(hash, 0, 0.0, size);
  }
};

struct ClearNextSlot {
  const std::int64_t* slot;
  std::int64_t slots;
  Checksum* ring;
  std::int64_t rows;

  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    ring[(*slot + 1) % slots * rows + row] = Checksum{};
  }
};

struct NextSlot {
  std::int64_t* slot;
  std::int64_t slots;

  KOKKOS_FUNCTION void operator()(std::int64_t) const { *slot = (*slot + 1) % slots; }
};

template <class Space>
void add_checksum(backend::Stream<Space>& stream, std::span<const ChecksumPart> parts, std::int64_t number,
                  const std::int64_t* slot, Checksum* ring, std::int64_t row, std::int64_t rows) {
  AddChecksum kernel{{}, 0, slot, ring, row, rows};
  std::int64_t teams = 0;
  for (const ChecksumPart& part : parts) {
    ++number;
    if (part.elements <= 0) continue;
    kernel.parts[kernel.count++] = {part.data, part.elements, teams, number, part.type};
    teams += (part.elements + elements_of_a_team - 1) / elements_of_a_team;
  }
  // The parts of one launch are many, and an access list is short: it depends on all others.
  backend::launch(stream, "encore::checksum", {}, backend::Teams<AddChecksum::threads>{teams}, kernel);
}

}  // namespace

template <class Space>
void checksum(backend::Stream<Space>& stream, std::span<const ChecksumPart> parts, const std::int64_t* slot,
              Checksum* ring, std::int64_t row, std::int64_t rows) {
  for (std::size_t first = 0; first < parts.size(); first += parts_of_a_launch)
    add_checksum(stream, parts.subspan(first, std::min(parts_of_a_launch, parts.size() - first)),
                 static_cast<std::int64_t>(first), slot, ring, row, rows);
}

template <class Space>
void advance_checksums(backend::Stream<Space>& stream, std::int64_t* slot, std::int64_t slots, Checksum* ring,
                       std::int64_t rows) {
  const auto all_rows = static_cast<std::size_t>(slots * rows);
  backend::launch(stream, "encore::checksum::clear", {backend::read(slot, 1), backend::write(ring, all_rows)},
                  backend::Range{rows}, ClearNextSlot{slot, slots, ring, rows});
  backend::launch(stream, "encore::checksum::advance", {backend::write(slot, 1)}, backend::Range{1},
                  NextSlot{slot, slots});
}

#define ENCORE_INSTANTIATE(SPACE)                                                                     \
  template void checksum(backend::Stream<SPACE>&, std::span<const ChecksumPart>, const std::int64_t*, \
                         Checksum*, std::int64_t, std::int64_t);                                      \
  template void advance_checksums(backend::Stream<SPACE>&, std::int64_t*, std::int64_t, Checksum*,    \
                                  std::int64_t);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
