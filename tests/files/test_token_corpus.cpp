// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/embedded_text.hpp>
#include <encore/model/files/token_corpus.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "file_size_limit.hpp"
#include "python_judge.hpp"
#include "temporary_folder.hpp"

using namespace encore::model;
using encore::InputFileError;
using encore::OutputFileError;

namespace {

std::vector<std::int32_t> all_tokens(const TokenCorpus& corpus, std::int64_t vocab = 2'147'483'647) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(corpus.size()));
  corpus.copy(0, tokens, vocab);
  return tokens;
}

/// A token file put together by hand.
std::string token_bytes(std::int32_t magic, std::int32_t version, std::int32_t count,
                        std::string_view tokens) {
  std::array<std::int32_t, 256> header{};
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  std::string bytes(sizeof(header), '\0');
  std::memcpy(bytes.data(), header.data(), sizeof(header));
  return bytes.append(tokens);
}

void check_refused(const std::string& bytes, const char* reason) {
  const TemporaryFolder folder;
  write_bytes(folder / "tokens.bin", bytes);
  CAPTURE(reason);
  CHECK_THROWS_WITH_AS(TokenCorpus::token_file(folder / "tokens.bin"), doctest::Contains(reason),
                       InputFileError);
  CHECK_THROWS_WITH_AS(TokenCorpus::token_file(folder / "tokens.bin"), doctest::Contains("/tokens.bin'"),
                       InputFileError);
}

}  // namespace

TEST_CASE("token files of both widths are read as they are written") {
  const TemporaryFolder folder;
  const std::vector<std::int32_t> narrow = {0, 1, 65535, 258, 50256};
  const std::vector<std::int32_t> wide = {0, 128255, 2'147'483'647, 65536};
  write_token_file(folder / "narrow.bin", narrow, TokenWidth::uint16);
  write_token_file(folder / "wide.bin", wide, TokenWidth::uint32);
  CHECK(std::filesystem::file_size(folder / "narrow.bin") == 1024 + 10);
  CHECK(std::filesystem::file_size(folder / "wide.bin") == 1024 + 16);
  CHECK(all_tokens(TokenCorpus::token_file(folder / "narrow.bin")) == narrow);
  CHECK(all_tokens(TokenCorpus::token_file(folder / "wide.bin"), 2'147'483'648) == wide);
  write_token_file(folder / "none.bin", {}, TokenWidth::uint16);
  CHECK(TokenCorpus::token_file(folder / "none.bin").size() == 0);
}

TEST_CASE("a token file is laid out as llm.c lays it out") {
  const TemporaryFolder folder;
  write_token_file(folder / "a.bin", std::vector<std::int32_t>{258, 7}, TokenWidth::uint16);
  CHECK(read_bytes(folder / "a.bin") == token_bytes(20240520, 1, 2, std::string("\x02\x01\x07\x00", 4)));
  write_token_file(folder / "b.bin", std::vector<std::int32_t>{258}, TokenWidth::uint32);
  CHECK(read_bytes(folder / "b.bin") == token_bytes(20240801, 7, 1, std::string("\x02\x01\x00\x00", 4)));
}

TEST_CASE("a token file with a wrong header or length is refused with the numbers") {
  check_refused("", "holds 0 bytes, but its header alone takes 1024");
  check_refused(std::string(1023, '\0'), "holds 1023 bytes");
  check_refused(std::string(1024, '\0'), "it begins with 0, not with 20240520");
  check_refused(token_bytes(20240521, 1, 0, ""), "it begins with 20240521");
  check_refused(token_bytes(20240520, 2, 0, ""), "of version 2, but only version 1 of its kind");
  check_refused(token_bytes(20240801, 1, 0, ""), "of version 1, but only version 7 of its kind");
  check_refused(token_bytes(20240520, 1, 2, "abc"), "announces 2 tokens of 2 bytes, but 3 bytes follow");
  check_refused(token_bytes(20240520, 1, 2, "abcdef"), "announces 2 tokens of 2 bytes, but 6 bytes follow");
  check_refused(token_bytes(20240801, 7, 1, "ab"), "announces 1 tokens of 4 bytes, but 2 bytes follow");
  check_refused(token_bytes(20240520, 1, -1, ""), "announces -1 tokens");
  check_refused(token_bytes(20240520, 1, 2'147'483'647, "ab"), "announces 2147483647 tokens");
  CHECK_THROWS_AS(TokenCorpus::token_file("/no/such/file"), InputFileError);
}

TEST_CASE("a token outside the vocabulary is named with file, position, token and limit") {
  const TemporaryFolder folder;
  write_token_file(folder / "a.bin", std::vector<std::int32_t>{1, 2, 3, 96, 5}, TokenWidth::uint16);
  const TokenCorpus corpus = TokenCorpus::token_file(folder / "a.bin");
  const char* sentence = "/a.bin' holds the token 96 at position 3, but model.vocab = 96 allows at most 95";
  CHECK_THROWS_WITH_AS(corpus.require_below(96), doctest::Contains(sentence), InputFileError);
  CHECK_THROWS_WITH_AS(corpus.slice(2, 5).require_below(96), doctest::Contains(sentence), InputFileError);
  std::array<std::int32_t, 3> tokens{};
  CHECK_THROWS_WITH_AS(corpus.copy(1, tokens, 96), doctest::Contains(sentence), InputFileError);
  CHECK_THROWS_WITH_AS(corpus.slice(1, 5).copy(0, tokens, 96), doctest::Contains(sentence), InputFileError);
  CHECK_NOTHROW(corpus.copy(0, tokens, 96));
  CHECK_NOTHROW(corpus.require_below(97));
  // 2^31 and more must not turn negative on the way.
  write_bytes(folder / "b.bin", token_bytes(20240801, 7, 1, "\xff\xff\xff\xff"));
  CHECK_THROWS_WITH_AS(TokenCorpus::token_file(folder / "b.bin").require_below(100),
                       doctest::Contains("token 4294967295"), InputFileError);
}

TEST_CASE("text is read by bytes, from a file, from memory and from the library") {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "a\xff\n");
  CHECK(all_tokens(TokenCorpus::text_file(folder / "a.txt")) == std::vector<std::int32_t>{97, 255, 10});
  CHECK(all_tokens(TokenCorpus::text("ab", "memory")) == std::vector<std::int32_t>{97, 98});
  const TokenCorpus shipped = TokenCorpus::embedded();
  CHECK(shipped.size() == static_cast<std::int64_t>(embedded_text().size()));
  CHECK_NOTHROW(shipped.require_below(128));
}

TEST_CASE("the shipped text is whole, plain and the file in the source tree") {
  CHECK(embedded_text().size() == 260714);
  CHECK(embedded_text().starts_with("Persuasion\n"));
  CHECK(embedded_text().ends_with("could have passed so well!\n"));
  for (const char character : embedded_text())
    REQUIRE((character == '\n' || (character >= ' ' && character <= '~')));
#ifdef ENCORE_TEST_SOURCE
  CHECK(embedded_text() == read_bytes(ENCORE_TEST_SOURCE "/model/data/persuasion.txt"));
#endif
}

TEST_CASE("a corpus outlives the object that opened it, and slices share it") {
  TokenCorpus part = [] {
    const TokenCorpus whole = TokenCorpus::text("0123456789", "digits");
    return whole.slice(2, 8).slice(1, 4);
  }();
  CHECK(all_tokens(part) == std::vector<std::int32_t>{'3', '4', '5'});
  CHECK(part.name() == "digits");
  CHECK_THROWS_AS(part.slice(0, 4), encore::InternalError);
  CHECK_THROWS_AS(part.slice(2, 1), encore::InternalError);
  std::array<std::int32_t, 2> tokens{};
  CHECK_THROWS_AS(part.copy(2, tokens, 256), encore::InternalError);
  CHECK_THROWS_AS(part.copy(-1, tokens, 256), encore::InternalError);
}

TEST_CASE("a token that does not fit, and a full disk, leave the old token file") {
  const TemporaryFolder folder;
  write_token_file(folder / "a.bin", std::vector<std::int32_t>{1}, TokenWidth::uint16);
  const std::string old = read_bytes(folder / "a.bin");
  CHECK_THROWS_WITH_AS(
      write_token_file(folder / "a.bin", std::vector<std::int32_t>{1, 65536}, TokenWidth::uint16),
      doctest::Contains("the token 65536 at position 1 does not fit into 2 bytes"), OutputFileError);
  CHECK_THROWS_AS(write_token_file(folder / "a.bin", std::vector<std::int32_t>{-1}, TokenWidth::uint32),
                  OutputFileError);
  {
    const FileSizeLimit limit(1500);
    CHECK_THROWS_AS(
        write_token_file(folder / "a.bin", std::vector<std::int32_t>(1000, 1), TokenWidth::uint16),
        OutputFileError);
  }
  CHECK(read_bytes(folder / "a.bin") == old);
  CHECK(folder.files() == 1);
}

TEST_CASE("numpy reads a token file as llm.c's data loader does") {
  const PythonJudge judge;
  if (!judge.has("numpy")) {
    MESSAGE("skipped: ENCORE_TEST_PYTHON or python3 has no numpy");
    return;
  }
  const TemporaryFolder folder;
  write_token_file(folder / "a.bin", std::vector<std::int32_t>{5, 50256, 7}, TokenWidth::uint16);
  const auto answer = judge.run(R"(
import sys, numpy
with open(sys.argv[1], 'rb') as f:
    header = numpy.frombuffer(f.read(256 * 4), dtype=numpy.int32)
    assert header[0] == 20240520 and header[1] == 1 and header[2] == 3, header
    assert numpy.frombuffer(f.read(), dtype=numpy.uint16).tolist() == [5, 50256, 7]
)",
                                "'" + (folder / "a.bin").string() + "'");
  INFO(answer.output);
  CHECK(answer.status == 0);
}
