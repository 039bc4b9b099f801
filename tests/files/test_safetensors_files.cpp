// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/safetensors_files.hpp>
#include <encore/model/files/sharded_safetensors_writer.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "file_size_limit.hpp"
#include "mutation.hpp"
#include "python_judge.hpp"
#include "safetensors_bytes.hpp"
#include "temporary_folder.hpp"

using namespace encore;
using namespace encore::model;

namespace {

constexpr const char* index_name = "model.safetensors.index.json";

std::vector<std::byte> pattern(std::size_t bytes, int seed) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    result[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed));
  return result;
}

/// Tensors a, b, ... of 4 to 40 floats, and one without elements.
void write_shards(const std::filesystem::path& folder, std::int64_t step, std::uint64_t most_bytes,
                  int seed = 0) {
  ShardedSafetensorsWriter writer(folder, step, most_bytes);
  writer.add_metadata("config", "{\"a\": \"ä\"}");
  for (int i = 0; i < 10; ++i)
    writer.add(std::string(1, static_cast<char>('a' + i)), StoredType::f32, {i + 1, 4});
  writer.add("none", StoredType::bf16, {0, 3});
  for (int i = 0; i < 10; ++i) {
    const auto bytes = pattern(static_cast<std::size_t>(16 * (i + 1)), i + seed);
    writer.write(std::string(1, static_cast<char>('a' + i)), std::span(bytes).first(7));
    writer.write(std::string(1, static_cast<char>('a' + i)), std::span(bytes).subspan(7));
  }
  writer.write("none", {});
  writer.commit();
}

void check_shards(const SafetensorsFiles& files, int seed = 0) {
  CHECK(files.metadata("config") == "{\"a\": \"ä\"}");
  CHECK(files.names().size() == 11);
  CHECK(files.tensor("none").bytes.empty());
  for (int i = 0; i < 10; ++i) {
    const StoredTensor& tensor = files.tensor(std::string(1, static_cast<char>('a' + i)));
    CHECK(tensor.shape == std::vector<std::int64_t>{i + 1, 4});
    const auto wanted = pattern(static_cast<std::size_t>(16 * (i + 1)), i + seed);
    CHECK(std::memcmp(tensor.bytes.data(), wanted.data(), wanted.size()) == 0);
  }
}

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

std::string file_with(const std::string& tensor) {
  return safetensors_bytes(R"({")" + tensor + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                           "abcd");
}

/// The sentence with which a folder of two files, holding the tensors x and y, is refused under this index.
std::string refusal(const std::string& index) {
  const TemporaryFolder folder;
  write_bytes(folder / "1.safetensors", file_with("x"));
  write_bytes(folder / "2.safetensors", file_with("y"));
  write_bytes(folder / index_name, index);
  try {
    const SafetensorsFiles files(folder.path());
  } catch (const InputFileError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("shards are read back bit for bit, none larger than asked for unless one tensor is") {
  for (const std::uint64_t most_bytes :
       {std::uint64_t{1}, std::uint64_t{100}, std::uint64_t{170}, std::uint64_t{1} << 40}) {
    CAPTURE(most_bytes);
    const TemporaryFolder folder;
    write_shards(folder.path(), 3, most_bytes);
    check_shards(SafetensorsFiles(folder.path()));
    const SafetensorsFiles files(folder / index_name);
    check_shards(files);
    CHECK(names_in(folder.path()).size() == files.file_count() + 1);
    CHECK((files.file_count() == 1) == (most_bytes > 880));
    for (const std::string& name : names_in(folder.path())) {
      if (name == index_name) continue;
      const SafetensorsFile shard(folder / name);
      std::size_t bytes = 0;
      for (const StoredTensor& tensor : shard.tensors()) bytes += tensor.bytes.size();
      CHECK((bytes <= most_bytes || shard.tensors().size() == 1 || shard.contains("none")));
    }
  }
}

TEST_CASE("a folder of one safetensors file, and the file alone, are read as such") {
  const TemporaryFolder folder;
  write_bytes(folder / "model.safetensors", file_with("x"));
  CHECK(SafetensorsFiles(folder.path()).contains("x"));
  CHECK(SafetensorsFiles(folder / "model.safetensors").file_count() == 1);
  CHECK_THROWS_WITH_AS(SafetensorsFiles(folder.path()).tensor("z"), doctest::Contains("has no tensor 'z'"),
                       InputFileError);
  write_bytes(folder / index_name, R"({"weight_map":{"x":"model.safetensors"}})");
  CHECK_THROWS_WITH_AS(SafetensorsFiles(folder.path()), doctest::Contains("holds both"), InputFileError);
  const TemporaryFolder empty;
  CHECK_THROWS_WITH_AS(SafetensorsFiles(empty.path()), doctest::Contains("holds neither"), InputFileError);
  // A path that is just short enough for the folder, and too long for a file in it.
  constexpr std::size_t longest_path = 4090;
  std::string path = empty.path().native();
  while (path.size() + 2 <= longest_path) path += "/.";
  CHECK_THROWS_WITH_AS(SafetensorsFiles{path}, doctest::Contains("cannot read"), InputFileError);
}

TEST_CASE("an index that does not fit its files is refused with the tensor or the number") {
  const auto with_map = [](const std::string& map, const std::string& metadata = "{}") {
    return refusal(R"({"metadata":)" + metadata + R"(,"weight_map":)" + map + "}");
  };
  const std::string good = R"({"x":"1.safetensors","y":"2.safetensors"})";
  CHECK(with_map(good) == "accepted");
  CHECK(with_map(good, R"({"total_size":8,"other":[1]})") == "accepted");
  CHECK(with_map(good, R"({"total_size":8.0})") == "accepted");
  const auto contains = [](const std::string& sentence, const std::string& words) {
    CHECK_MESSAGE(sentence.find(words) != std::string::npos, sentence);
  };
  contains(with_map(good, R"({"total_size":9})"), "total_size of 9 bytes, but its files hold 8");
  contains(with_map(good, R"({"total_size":"8"})"), "total_size that is no number");
  contains(with_map(good, "3"), "metadata that is no object");
  contains(with_map(R"({"x":"1.safetensors","y":"2.safetensors","z":"2.safetensors"})"), "'z' into");
  contains(with_map(R"({"x":"1.safetensors","z":"2.safetensors"})"), "does not name tensor 'y'");
  contains(with_map(R"({"x":"2.safetensors","y":"2.safetensors"})"), "'x' into");
  contains(with_map(R"({"x":"1.safetensors","y":"1.safetensors"})"), "does not hold it");
  contains(with_map(R"({"x":"1.safetensors","x":"1.safetensors"})"), "the key 'x' twice");
  contains(with_map(R"({"x":"3.safetensors"})"), "3.safetensors");
  for (const char* const name : {"../1.safetensors", "/etc/passwd", "a/1.safetensors", "..", ".safetensors",
                                 "", "1.bin", "..\\\\1.safetensors", "1.safetensors\\u0000/x.safetensors"})
    contains(with_map(R"({"x":")" + std::string(name) + R"(","y":"2.safetensors"})"),
             "no safetensors file beside it");
  contains(with_map(R"({"x":1,"y":"2.safetensors"})"), "no safetensors file beside it");
  contains(with_map("{}"), "no weight_map");
  contains(refusal("{}"), "no weight_map");
  contains(refusal("[]"), "is not a JSON object");
}

TEST_CASE("a checkpoint replaces the one before it, whose shards then go") {
  const TemporaryFolder folder;
  write_bytes(folder / "notes.txt", "kept");
  write_shards(folder.path(), 1, 100, 5);
  const auto first = names_in(folder.path());
  write_shards(folder.path(), 1, 100, 6);  // the same step again: the names must not be those in use
  const auto second = names_in(folder.path());
  check_shards(SafetensorsFiles(folder.path()), 6);
  CHECK(first.size() == second.size());
  CHECK(first != second);
  write_shards(folder.path(), 2, 1000);
  check_shards(SafetensorsFiles(folder.path()));
  CHECK(names_in(folder.path()).size() == 3);
  CHECK(read_bytes(folder / "notes.txt") == "kept");
}

TEST_CASE("shards of earlier saves go, other files with a similar name stay") {
  const TemporaryFolder folder;
  const std::vector<std::string> others{"model-step-100.safetensors",
                                        "model-step-100.safetensors.partial",
                                        "model-step-1-of-2.safetensors",
                                        "model-step-1-0001-of-00002.safetensors",
                                        "model-step-1-00001-of-00002.safetensors.old",
                                        "model-step-best-00001-of-00002.safetensors",
                                        "my-model-step-1-00001-of-00002.safetensors",
                                        "model-step-00001-of-00002.safetensors"};
  for (const std::string& name : others) write_bytes(folder / name, "kept");
  for (const char* const name :
       {"model-step-1-00001-of-00002.safetensors", "model-step-1-2-00001-of-00002.safetensors",
        "model-step-12-100000-of-100000.safetensors", "model-step-1-00002-of-00002.safetensors.partial"})
    write_bytes(folder / name, "left");
  write_shards(folder.path(), 3, 1000);
  const SafetensorsFiles files(folder.path());
  check_shards(files);
  for (const std::string& name : others) CHECK(read_bytes(folder / name) == "kept");
  CHECK(names_in(folder.path()).size() == others.size() + files.file_count() + 1);
}

TEST_CASE("a save that is broken off at any byte leaves the checkpoint before it") {
  const TemporaryFolder folder;
  write_shards(folder.path(), 1, 300);
  const std::string index = read_bytes(folder / index_name);
  for (rlim_t limit = 0; limit < 600; limit += 50) {
    CAPTURE(limit);
    const FileSizeLimit no_more(limit);
    CHECK_THROWS_AS(write_shards(folder.path(), 2, 300, 9), OutputFileError);
  }
  CHECK(read_bytes(folder / index_name) == index);
  check_shards(SafetensorsFiles(folder.path()));
  {
    ShardedSafetensorsWriter writer(folder.path(), 2, 10);
    writer.add("a", StoredType::u8, {10});
    writer.add("b", StoredType::u8, {10});
    writer.write("a", pattern(10, 0));
    CHECK(names_in(folder.path()).size() > 4);  // a whole shard of a checkpoint that never comes to be
    CHECK_THROWS_WITH_AS(write_shards(folder.path(), 3, 100), doctest::Contains("another process"),
                         OutputFileError);
  }
  check_shards(SafetensorsFiles(folder.path()));
  write_shards(folder.path(), 4, 300, 2);
  check_shards(SafetensorsFiles(folder.path()), 2);
  const SafetensorsFiles files(folder.path());
  CHECK(names_in(folder.path()).size() == files.file_count() + 1);
}

TEST_CASE("shards are not written into a folder with a checkpoint of others") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(ShardedSafetensorsWriter(folder / "none", 1, 1), doctest::Contains("is no folder"),
                       OutputFileError);
  write_bytes(folder / "1.safetensors", file_with("x"));
  write_bytes(folder / index_name, R"({"weight_map":{"x":"1.safetensors"}})");
  CHECK_THROWS_WITH_AS(ShardedSafetensorsWriter(folder.path(), 1, 1), doctest::Contains("1.safetensors"),
                       OutputFileError);
  std::filesystem::remove(folder / index_name);
  write_bytes(folder / "model.safetensors", file_with("x"));
  CHECK_THROWS_WITH_AS(ShardedSafetensorsWriter(folder.path(), 1, 1), doctest::Contains("model.safetensors"),
                       OutputFileError);
  CHECK(folder.files() == 2);
}

TEST_CASE("damaged indexes are refused or lead to files beside them") {
  constexpr std::array<std::string_view, 12> words = {
      "{", "}", "\"", ",", ":", "null", "../", "/", "\"1.safetensors\"", "1e999", "-1", "\"x\""};
  const TemporaryFolder folder;
  write_bytes(folder / "1.safetensors", file_with("x"));
  write_bytes(folder / "2.safetensors", file_with("y"));
  Mutation mutation(16, words);
  int accepted = 0;
  const int rounds = fuzz_rounds() / 2;
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    write_bytes(folder / index_name, mutation.of(R"({"metadata":{"total_size":8,"format":"pt"},"weight_map":)"
                                                 R"({"x":"1.safetensors","y":"2.safetensors"}})"));
    try {
      const SafetensorsFiles files(folder.path());
      ++accepted;
      CHECK(files.names() == std::vector<std::string>{"x", "y"});
    } catch (const InputFileError& error) {
      CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
    }
  }
  CHECK(accepted > 0);
  CHECK(accepted < rounds / 2);
}

TEST_CASE(
    "the Python package safetensors reads shards where the index says they are, and its shards are read") {
  const PythonJudge judge;
  if (!judge.has("numpy, safetensors.numpy")) {
    MESSAGE("skipped: ENCORE_TEST_PYTHON or python3 has no numpy with safetensors");
    return;
  }
  const TemporaryFolder folder;
  write_shards(folder.path(), 12, 200);
  std::filesystem::create_directory(folder / "theirs");
  const auto answer = judge.run(R"(
import json, pathlib, sys
from safetensors import safe_open
from safetensors.numpy import save_file
folder = pathlib.Path(sys.argv[1])
index = json.loads((folder / "model.safetensors.index.json").read_text())
tensors = {}
for name, file in index["weight_map"].items():
    with safe_open(folder / file, framework="np") as shard:
        tensors[name] = shard.get_tensor(name) if name != "none" else None
total = sum(t.nbytes for t in tensors.values() if t is not None)
assert total == index["metadata"]["total_size"] == 880, total
assert len(set(index["weight_map"].values())) > 3
assert tensors["c"].view("u1").reshape(-1).tolist() == [(i * 7 + 2) % 256 for i in range(48)]
weight_map = {}
for name in "abcdefghij":
    file = f"model-{ord(name) % 3}.safetensors"
    weight_map[name] = file
for file in set(weight_map.values()):
    save_file({n: tensors[n] for n in weight_map if weight_map[n] == file}, folder / "theirs" / file)
(folder / "theirs" / "model.safetensors.index.json").write_text(json.dumps(
    {"metadata": {"total_size": total}, "weight_map": weight_map}))
)",
                                "'" + folder.path().string() + "'");
  REQUIRE_MESSAGE(answer.status == 0, answer.output);
  const SafetensorsFiles theirs(folder / "theirs");
  CHECK(theirs.file_count() == 3);
  const SafetensorsFiles ours(folder.path());
  for (const std::string& name : theirs.names())
    CHECK(theirs.float32(name).size() * sizeof(float) == ours.tensor(name).bytes.size());
}
