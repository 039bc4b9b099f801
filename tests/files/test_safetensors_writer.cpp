// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <encore/backend/error.hpp>
#include <encore/model/files/safetensors_file.hpp>
#include <encore/model/files/safetensors_writer.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "file_size_limit.hpp"
#include "python_judge.hpp"
#include "temporary_folder.hpp"

using namespace encore::model;
using encore::InternalError;
using encore::OutputFileError;

namespace {

struct Written {
  std::string name;
  StoredType type;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

std::vector<Written> random_tensors(std::mt19937_64& random) {
  std::vector<Written> tensors(random() % 6);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Written& tensor = tensors[i];
    tensor.name = "tensor." + std::to_string(i) + std::string(random() % 9, 'x');
    tensor.type = static_cast<StoredType>(random() % 15);
    tensor.shape.resize(random() % 4);
    std::size_t bytes = size_of(tensor.type);
    for (std::int64_t& extent : tensor.shape) {
      extent = static_cast<std::int64_t>(random() % 5);
      bytes *= static_cast<std::size_t>(extent);
    }
    tensor.bytes.resize(bytes);
    for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
  }
  return tensors;
}

void add_floats(SafetensorsWriter& writer, std::size_t count) {
  writer.add("w", StoredType::f32, {static_cast<std::int64_t>(count)});
  const std::vector<float> values(count, 1.5F);
  writer.write("w", std::as_bytes(std::span(values)));
}

}  // namespace

TEST_CASE("whatever is written is read back, for any names, types, shapes, pieces and order") {
  const TemporaryFolder folder;
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const std::vector<Written> tensors = random_tensors(random);
    SafetensorsWriter writer(folder / "a");
    writer.add_metadata("round", std::to_string(round));
    for (const Written& tensor : tensors) writer.add(tensor.name, tensor.type, tensor.shape);
    for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
      const std::span<const std::byte> bytes(tensor->bytes);
      const std::size_t cut = bytes.empty() ? 0 : random() % bytes.size();
      writer.write(tensor->name, bytes.first(cut));
      writer.write(tensor->name, bytes.subspan(cut));
    }
    writer.commit();

    const SafetensorsFile file(folder / "a");
    CHECK(file.metadata("round") == std::to_string(round));
    REQUIRE(file.tensors().size() == tensors.size());
    for (const Written& tensor : tensors) {
      const StoredTensor& stored = file.tensor(tensor.name);
      CHECK(stored.type == tensor.type);
      CHECK(stored.shape == tensor.shape);
      CHECK(std::vector(stored.bytes.begin(), stored.bytes.end()) == tensor.bytes);
      CHECK(reinterpret_cast<std::uintptr_t>(stored.bytes.data()) % size_of(stored.type) == 0);
    }
  }
}

TEST_CASE("the header is padded with spaces to a multiple of eight bytes") {
  const TemporaryFolder folder;
  for (std::size_t length = 1; length < 12; ++length) {
    SafetensorsWriter writer(folder / "a");
    writer.add(std::string(length, 'n'), StoredType::u8, {0});
    writer.commit();
    const std::string bytes = read_bytes(folder / "a");
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    CHECK(header % 8 == 0);
    CHECK(bytes.size() == 8 + header);
    CHECK(bytes[8] == '{');
  }
}

TEST_CASE("a full disk while saving keeps the old checkpoint and leaves no rest") {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "a");
    add_floats(writer, 10);
    writer.commit();
  }
  const std::string old = read_bytes(folder / "a");
  {
    const FileSizeLimit limit(1000);
    const auto save = [&] {
      SafetensorsWriter writer(folder / "a");
      add_floats(writer, 10'000);
      writer.commit();
    };
    CHECK_THROWS_WITH_AS(save(), doctest::Contains("/a': failed to write at byte 1000"), OutputFileError);
  }
  CHECK(read_bytes(folder / "a") == old);
  CHECK(folder.files() == 1);
}

TEST_CASE("a writer that is not committed leaves the old file") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  {
    SafetensorsWriter writer(folder / "a");
    add_floats(writer, 10);
  }
  CHECK(read_bytes(folder / "a") == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("wrong use of the writer is reported, never written") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a");
  writer.add("w", StoredType::u8, {2});
  CHECK_THROWS_WITH_AS(writer.add("w", StoredType::u8, {2}), doctest::Contains("'w' was added twice"),
                       InternalError);
  CHECK_THROWS_WITH_AS(writer.add("v", StoredType::u8, {-1}), doctest::Contains("extent -1"), InternalError);
  CHECK_THROWS_AS(writer.add("__metadata__", StoredType::u8, {1}), InternalError);
  writer.add_metadata("k", "v");
  CHECK_THROWS_AS(writer.add_metadata("k", "w"), InternalError);
  const std::array<std::byte, 3> bytes{};
  CHECK_THROWS_WITH_AS(writer.write("x", bytes), doctest::Contains("'x' was never added"), InternalError);
  CHECK_THROWS_WITH_AS(writer.write("w", bytes), doctest::Contains("has 2 bytes, but 3 were written"),
                       InternalError);
  CHECK_THROWS_AS(writer.add("late", StoredType::u8, {1}), InternalError);
  CHECK_THROWS_AS(writer.add_metadata("late", ""), InternalError);
  writer.write("w", std::span(bytes).first(1));
  CHECK_THROWS_WITH_AS(writer.commit(), doctest::Contains("only 1 were written"), InternalError);
  CHECK_FALSE(std::filesystem::exists(folder / "a"));
  SafetensorsWriter invalid(folder / "b");
  invalid.add("\xff", StoredType::u8, {0});
  CHECK_THROWS_WITH_AS(invalid.commit(), doctest::Contains("not valid UTF-8"), InternalError);
}

TEST_CASE("the Python package safetensors reads what is written and writes what is read") {
  const PythonJudge judge;
  if (!judge.has("numpy, safetensors.numpy")) {
    MESSAGE("skipped: ENCORE_TEST_PYTHON or python3 has no numpy with safetensors");
    return;
  }
  const TemporaryFolder folder;
  const std::vector<float> floats = {1.5F, -2.25F, 3e-30F, 0, 5, 6};
  const std::vector<std::int64_t> integers = {-100, 1'000'000'000'000};
  const std::vector<std::uint8_t> odd = {1, 2, 3};
  SafetensorsWriter writer(folder / "ours");
  writer.add_metadata("config", "{\"a\": \"ä\\n\"}");
  writer.add("odd", StoredType::u8, {3});
  writer.add("floats", StoredType::f32, {2, 3});
  writer.add("scalar", StoredType::f32, {});
  writer.add("none", StoredType::f64, {0, 4});
  writer.add("integers", StoredType::i64, {2});
  writer.write("odd", std::as_bytes(std::span(odd)));
  writer.write("floats", std::as_bytes(std::span(floats)));
  writer.write("scalar", std::as_bytes(std::span(floats).first(1)));
  writer.write("integers", std::as_bytes(std::span(integers)));
  writer.commit();
  const auto answer =
      judge.run(R"(
import sys, numpy, safetensors, safetensors.numpy
t = safetensors.numpy.load_file(sys.argv[1])
assert sorted(t) == ['floats', 'integers', 'none', 'odd', 'scalar'], sorted(t)
numpy.testing.assert_array_equal(t['floats'], numpy.array([[1.5, -2.25, 3e-30], [0, 5, 6]], numpy.float32))
numpy.testing.assert_array_equal(t['integers'], numpy.array([-100, 10**12]))
assert t['scalar'].shape == () and t['scalar'] == 1.5
assert t['none'].shape == (0, 4) and t['none'].dtype == numpy.float64
assert t['odd'].tolist() == [1, 2, 3]
with safetensors.safe_open(sys.argv[1], 'np') as f:
    assert f.metadata() == {'config': '{"a": "\u00e4\\n"}'}, f.metadata()
safetensors.numpy.save_file(
    {'odd': numpy.arange(3, dtype=numpy.uint8), 'half': numpy.array([0.1, -65504, 6e-8], numpy.float16),
     'x': numpy.arange(6, dtype=numpy.float32).reshape(2, 3), 'one': numpy.array(7, numpy.int64)},
    sys.argv[2], metadata={'note': 'by numpy'})
)",
                "'" + (folder / "ours").string() + "' '" + (folder / "theirs").string() + "'");
  INFO(answer.output);
  REQUIRE(answer.status == 0);
  const SafetensorsFile theirs(folder / "theirs");
  CHECK(theirs.metadata("note") == "by numpy");
  CHECK(theirs.float32("x") == std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK(theirs.tensor("x").shape == std::vector<std::int64_t>{2, 3});
  CHECK(theirs.float64("half") == std::vector<double>{0.0999755859375, -65504, 5.9604644775390625e-08});
  CHECK(theirs.int64("one") == std::vector<std::int64_t>{7});
  CHECK(theirs.int64("odd") == std::vector<std::int64_t>{0, 1, 2});
}
