// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <encore/backend/error.hpp>
#include <encore/model/files/safetensors_file.hpp>
#include <initializer_list>
#include <limits>
#include <string>
#include <tuple>

#include "safetensors_bytes.hpp"
#include "temporary_folder.hpp"

using encore::InputFileError;
using encore::model::SafetensorsFile;
using encore::model::StoredType;

namespace {

class WrittenFile {
 public:
  explicit WrittenFile(std::string_view bytes) { write_bytes(path(), bytes); }
  std::filesystem::path path() const { return folder_ / "file.safetensors"; }

 private:
  TemporaryFolder folder_;
};

/// Checks that the file is refused with a sentence that names it and holds `reason`.
void check_refused(std::string_view bytes, const char* reason) {
  const WrittenFile file(bytes);
  CAPTURE(reason);
  CHECK_THROWS_WITH_AS(SafetensorsFile(file.path()), doctest::Contains(reason), InputFileError);
  CHECK_THROWS_WITH_AS(SafetensorsFile(file.path()), doctest::Contains("/file.safetensors'"), InputFileError);
}

}  // namespace

TEST_CASE("a well-formed safetensors file gives names, shapes, bytes and metadata") {
  const WrittenFile written(safetensors_bytes(
      R"({"__metadata__":{"format":"pt","note":"ä"},"b":{"dtype":"I64","shape":[],"data_offsets":[6,14]},)"
      R"("a":{"shape":[3,1],"dtype":"BF16","data_offsets":[0,6]},"none":{"dtype":"F32","shape":[0,7],"data_offsets":[6,6]}}   )",
      std::string("\x80\x3f\x00\x40\x00\xc0\xff\xff\xff\xff\xff\xff\xff\xff", 14)));
  const SafetensorsFile file(written.path());
  CHECK(file.names() == std::vector<std::string>{"a", "none", "b"});
  CHECK(file.tensor("a").type == StoredType::bf16);
  CHECK(file.tensor("a").shape == std::vector<std::int64_t>{3, 1});
  CHECK(file.tensor("a").elements() == 3);
  CHECK(file.float32("a") == std::vector<float>{1, 2, -2});
  CHECK(file.tensor("b").shape.empty());
  CHECK(file.tensor("b").elements() == 1);
  CHECK(file.int64("b") == std::vector<std::int64_t>{-1});
  CHECK(file.tensor("none").elements() == 0);
  CHECK(file.float64("none").empty());
  CHECK(file.contains("a"));
  CHECK_FALSE(file.contains("c"));
  CHECK(file.metadata("format") == "pt");
  CHECK(file.metadata().at("note") == "ä");
}

TEST_CASE("a safetensors file may be empty of tensors and of metadata") {
  const WrittenFile written(safetensors_bytes("{}", ""));
  const SafetensorsFile file(written.path());
  CHECK(file.tensors().empty());
  CHECK(file.metadata().empty());
}

TEST_CASE("a missing tensor or metadata entry is named, with the nearest one") {
  const WrittenFile written(
      safetensors_bytes(R"({"model.norm.weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  const SafetensorsFile file(written.path());
  CHECK_THROWS_WITH_AS(
      file.tensor("model.norm.wieght"),
      doctest::Contains("has no tensor 'model.norm.wieght' (did you mean 'model.norm.weight'?)"),
      InputFileError);
  CHECK_THROWS_WITH_AS(file.metadata("config"), doctest::Contains("has no metadata entry 'config'"),
                       InputFileError);
  CHECK_THROWS_WITH_AS(file.float32("model.norm.weight"), doctest::Contains("is of type U8, but F64, F32"),
                       InputFileError);
}

TEST_CASE("every element type is read with its values") {
  const auto one = [](const char* type, std::string bytes) {
    const std::string header = std::string(R"({"t":{"dtype":")") + type +
                               R"(","shape":[1],"data_offsets":[0,)" + std::to_string(bytes.size()) + "]}}";
    return safetensors_bytes(header, bytes);
  };
  using Bytes = std::string;
  for (const auto& [type, bytes, expected] :
       std::initializer_list<std::tuple<const char*, Bytes, std::int64_t>>{
           {"BOOL", Bytes("\x01", 1), 1},
           {"U8", Bytes("\xff", 1), 255},
           {"I8", Bytes("\xff", 1), -1},
           {"I16", Bytes("\xfe\xff", 2), -2},
           {"U16", Bytes("\xfe\xff", 2), 65534},
           {"I32", Bytes("\xfe\xff\xff\xff", 4), -2},
           {"U32", Bytes("\xfe\xff\xff\xff", 4), 4294967294},
           {"I64", Bytes("\x00\x00\x00\x00\x00\x00\x00\x80", 8), std::numeric_limits<std::int64_t>::min()},
           {"U64", Bytes("\xff\xff\xff\xff\xff\xff\xff\x7f", 8), std::numeric_limits<std::int64_t>::max()}}) {
    CAPTURE(type);
    const WrittenFile written(one(type, bytes));
    const SafetensorsFile file(written.path());
    CHECK(file.int64("t") == std::vector<std::int64_t>{expected});
    CHECK_THROWS_AS(file.float32("t"), InputFileError);
  }
  for (const auto& [type, bytes, expected] : std::initializer_list<std::tuple<const char*, Bytes, double>>{
           {"F64", Bytes("\x9a\x99\x99\x99\x99\x99\xb9\x3f", 8), 0.1},
           {"F32", Bytes("\x00\x00\x80\x3e", 4), 0.25},
           {"BF16", Bytes("\x49\xc0", 2), -3.140625},
           {"F16", Bytes("\x48\x42", 2), 3.140625},
           {"F16", Bytes("\x01\x00", 2), std::ldexp(1.0, -24)},
           {"F16", Bytes("\xff\x83", 2), -std::ldexp(1023.0, -24)},
           {"F16", Bytes("\xff\x7b", 2), 65504},
           {"F16", Bytes("\x00\xfc", 2), -std::numeric_limits<double>::infinity()}}) {
    CAPTURE(type);
    const WrittenFile written(one(type, bytes));
    const SafetensorsFile file(written.path());
    CHECK(file.float64("t") == std::vector<double>{expected});
    CHECK(file.float32("t") == std::vector<float>{static_cast<float>(expected)});
    CHECK_THROWS_AS(file.int64("t"), InputFileError);
  }
  const WrittenFile too_large(one("U64", Bytes("\x00\x00\x00\x00\x00\x00\x00\x80", 8)));
  CHECK_THROWS_WITH_AS(SafetensorsFile(too_large.path()).int64("t"), doctest::Contains("9223372036854775808"),
                       InputFileError);
  const WrittenFile not_a_number(one("F16", Bytes("\x01\x7c", 2)));
  CHECK(std::isnan(SafetensorsFile(not_a_number.path()).float32("t")[0]));
}

TEST_CASE("a length prefix that is missing, too large or lying is refused") {
  check_refused("", "holds 0 bytes, but its header's length alone takes 8");
  check_refused("1234567", "holds 7 bytes");
  check_refused(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10),
                "announces a header of 18446744073709551615");
  check_refused(std::string("\x01\xe1\xf5\x05\x00\x00\x00\x00{}", 10),
                "100000001 bytes, more than the 100000000");
  check_refused(std::string("\x03\x00\x00\x00\x00\x00\x00\x00{}", 10),
                "header of 3 bytes, but only 2 bytes follow");
  check_refused(std::string("\x00\x00\x00\x00\x00\x00\x00\x00", 8), "not valid JSON");
}

TEST_CASE("a header that is not one JSON object of the known form is refused with the place") {
  for (
      const auto& [header, reason] : std::initializer_list<std::pair<const char*, const char*>>{
          {"[]", "it is an array, not an object"},
          {"null", "it is null, not an object"},
          {"{", "not valid JSON"},
          {"{}x", "not valid JSON"},
          {"{} {}", "not valid JSON"},
          {"{\"a\":\"\xff\"}", "not valid JSON"},
          {"{\"\xff\":1}", "not valid JSON"},
          {R"({"a":1})", "tensor 'a' is the number 1, not an object"},
          {R"({"a":[]})", "tensor 'a' is an array, not an object"},
          {R"({"a":{}})", "tensor 'a' has no dtype"},
          {R"({"a":{"dtype":"F32"}})", "tensor 'a' has no shape"},
          {R"({"a":{"dtype":"F32","shape":[1]}})", "tensor 'a' has no data_offsets"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}})", "unknown field 'extra'"},
          {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "has 'dtype' twice"},
          {R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", "dtype of tensor 'a' is the number 4"},
          {R"({"a":{"dtype":{"x":1},"shape":[1],"data_offsets":[0,4]}})", "dtype of tensor 'a' is an object"},
          {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "shape of tensor 'a' is the number 1"},
          {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "holds the number -1"},
          {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "holds the number '1.0'"},
          {R"({"a":{"dtype":"F32","shape":[1e99],"data_offsets":[0,4]}})", "holds the number '1e99'"},
          {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "holds an array"},
          {R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "holds the string '1'"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "not a pair of numbers"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "not a pair of numbers"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "not a pair of numbers"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":4}})", "not a pair of numbers"},
          {R"({"__metadata__":{"a":1}})", "the metadata entry 'a' is the number 1, not a string"},
          {R"({"__metadata__":{"a":"1","a":"2"}})", "the metadata entry 'a' occurs twice"},
          {R"({"__metadata__":{},"__metadata__":{}})", "the name '__metadata__' occurs twice"},
          {R"({"__metadata__":"a"})", "__metadata__ is the string 'a', not an object"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
           "the name 'a' occurs twice"}})
    check_refused(safetensors_bytes(header, "1234"), reason);
  std::string deep = R"({"a":{"dtype":"F32","shape":)";
  deep.append(100'000, '[');
  check_refused(safetensors_bytes(deep, ""), "shape of tensor 'a' holds an array");
  std::string long_shape = R"({"a":{"dtype":"F32","shape":[1)";
  for (int i = 0; i < 64; ++i) long_shape += ",1";
  check_refused(safetensors_bytes(long_shape + R"(],"data_offsets":[0,4]}})", "1234"),
                "more than 64 extents");
}

TEST_CASE("a tensor whose type, shape and bytes do not agree with the file is refused with the numbers") {
  const auto tensor = [](const char* type, const char* shape, const char* range) {
    return std::string(R"({"w":{"dtype":")") + type + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           range + "}}";
  };
  check_refused(safetensors_bytes(tensor("F31", "[1]", "[0,4]"), "1234"), "has the type 'F31'");
  check_refused(safetensors_bytes(tensor("f32", "[1]", "[0,4]"), "1234"), "has the type 'f32'");
  check_refused(safetensors_bytes(tensor("F32", "[2]", "[0,4]"), "1234"),
                "has 4 bytes, but shape [2] of F32 needs 8");
  check_refused(safetensors_bytes(tensor("F32", "[0]", "[0,4]"), "1234"),
                "has 4 bytes, but shape [0] of F32 needs 0");
  check_refused(safetensors_bytes(tensor("F32", "[2]", "[0,8]"), "1234"), "ends at byte 8 of the data");
  check_refused(safetensors_bytes(tensor("F32", "[1]", "[4,0]"), "1234"),
                "ends at byte 0, before its begin 4");
  check_refused(safetensors_bytes(tensor("F32", "[0]", "[9,9]"), "1234"), "ends at byte 9");
  check_refused(safetensors_bytes(tensor("F32", "[4294967296,4294967296]", "[0,4]"), "1234"), "is too large");
  check_refused(safetensors_bytes(tensor("F32", "[9223372036854775808,0]", "[0,0]"), ""), "is too large");
  check_refused(safetensors_bytes(tensor("F32", "[18446744073709551616]", "[0,4]"), "1234"),
                "holds the number");
  // 2^62 elements of 4 bytes are 2^64 bytes, which would wrap around to the 0 bytes that are there.
  check_refused(safetensors_bytes(tensor("F32", "[4611686018427387904]", "[0,0]"), ""), "is too large");
}

TEST_CASE("byte ranges that overlap, leave a hole or leave a rest are refused") {
  const auto two = [](const char* first, const char* second) {
    return std::string(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)") + first +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
  };
  check_refused(safetensors_bytes(two("[0,2]", "[1,3]"), "123"), "tensors 'a' and 'b' of");
  check_refused(safetensors_bytes(two("[0,2]", "[0,2]"), "12"), "overlap at byte 0");
  check_refused(safetensors_bytes(two("[0,2]", "[3,5]"), "12345"), "bytes 2 to 3 of the data");
  check_refused(safetensors_bytes(two("[1,3]", "[3,5]"), "12345"), "bytes 0 to 1 of the data");
  check_refused(safetensors_bytes(two("[0,2]", "[2,4]"), "12345"), "the last 1 bytes of");
  check_refused(safetensors_bytes("{}", "1"), "the last 1 bytes of");
  // A tensor without bytes in the middle of another overlaps it.
  check_refused(safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                  R"("b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                                  "1234"),
                "overlap at byte 2");
}

TEST_CASE("a file cut at any length is refused") {
  const std::string whole =
      safetensors_bytes(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "0123456789abcdef");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const WrittenFile file(whole.substr(0, length));
    CAPTURE(length);
    CHECK_THROWS_AS(SafetensorsFile(file.path()), InputFileError);
  }
  const WrittenFile file(whole);
  CHECK(SafetensorsFile(file.path()).names().size() == 1);
}
