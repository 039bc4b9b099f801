// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/cluster.hpp>

#include <doctest/doctest.h>

#include <random>
#include <string>

namespace {

using namespace encore;
using namespace encore::model;
using backend::TransportOperation;

const std::string two_nodes =
    R"({"nodes": 2, "gpus_per_node": 8, "gib_per_gpu": 141, "within_node": {"gb_per_s": 450, "latency_us": 4},
        "between_nodes": {"gb_per_s": 50, "latency_us": 10}})";

std::string refusal_of(const std::string& text) {
  try {
    parse_cluster(text, "cluster.json");
    return {};
  } catch (const InputFileError& error) {
    return error.what();
  }
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  text.replace(text.find(what), what.size(), by);
  return text;
}

}  // namespace

TEST_CASE("a description of a cluster is read") {
  const ClusterDescription cluster = parse_cluster(two_nodes, "cluster.json");
  CHECK(cluster.gpus() == 16);
  CHECK(cluster.gibibytes_per_gpu == 141);
  CHECK(cluster.within_node.gigabytes_per_second == 450);
  CHECK(cluster.between_nodes.microseconds == 10);
}

TEST_CASE("one node needs no links between nodes, and two do") {
  const std::string one =
      R"({"nodes": 1, "gpus_per_node": 8, "gib_per_gpu": 80, "within_node": {"gb_per_s": 450, "latency_us": 4}})";
  CHECK(parse_cluster(one, "cluster.json").gpus() == 8);
  CHECK(refusal_of(replaced(one, R"("nodes": 1)", R"("nodes": 2)")) ==
        "'cluster.json': between_nodes is missing");
}

TEST_CASE("rates of a GPU are read where they are given, both or none") {
  CHECK(!parse_cluster(two_nodes, "cluster.json").rates);
  const std::string with = replaced(two_nodes, R"("nodes": 2)",
                                    R"("nodes": 2, "rates": {"tflops": 700, "memory_gb_per_s": 4000})");
  const ClusterDescription cluster = parse_cluster(with, "cluster.json");
  REQUIRE(cluster.rates);
  CHECK(cluster.rates->teraflops_per_second == 700);
  CHECK(cluster.rates->memory_gigabytes_per_second == 4000);
  CHECK(refusal_of(replaced(with, R"("tflops": 700, )", "")) == "'cluster.json': rates.tflops is missing");
  CHECK(refusal_of(replaced(with, "tflops", "tflop")) ==
        "'cluster.json': there is no field 'rates.tflop' (did you mean 'tflops'?)");
}

TEST_CASE("groups of which any reaches beyond a node are told from those that stay inside") {
  ParallelConfiguration parallel;
  parallel.tensor = 4;
  parallel.data = 2;
  const RankLayout straddling(parallel, true);
  // Of nodes of six GPUs the first has all tensor ranks of the first group, and half of those of the second.
  CHECK(!stays_in_node(straddling, RankGroup::tensor, 0, 6));
  CHECK(stays_in_node(straddling, RankGroup::tensor, 0, 4));
  CHECK(!stays_in_node(straddling, RankGroup::data, 0, 4));
  CHECK(stays_in_node(straddling, RankGroup::data, 0, 8));
  parallel = {};
  parallel.data = 3;
  parallel.pipeline = 3;
  const RankLayout stages(parallel, true);
  // Ranks 0-3, 4-7 and 8: the first stage's data ranks are together, those of the others are not.
  CHECK(stays_in_node(stages, RankGroup::data, 0, 4));
  CHECK(!stays_in_node(stages, RankGroup::data, 1, 4));
  CHECK(!stays_in_node(stages, RankGroup::world, 0, 4));
  CHECK(!stays_in_node(stages, RankGroup::pipeline, 0, 4));
}

TEST_CASE("messages between neighbouring stages may stay in a node that the pipeline leaves") {
  ParallelConfiguration parallel;
  parallel.data = 4;
  parallel.pipeline = 4;
  const RankLayout layout(parallel, true);
  CHECK(messages_stay_in_node(layout, 0, 1, 8));
  CHECK(!messages_stay_in_node(layout, 1, 2, 8));
  CHECK(messages_stay_in_node(layout, 3, 2, 8));
  CHECK(!messages_stay_in_node(layout, 0, 1, 7));
}

TEST_CASE("anything else is refused with the field's name") {
  CHECK(refusal_of(replaced(two_nodes, "gib_per_gpu", "gib_per_gpus")) ==
        "'cluster.json': there is no field 'gib_per_gpus' (did you mean 'gib_per_gpu'?)");
  CHECK(refusal_of(replaced(two_nodes, "\"latency_us\": 4", "\"latency_usec\": 4")) ==
        "'cluster.json': there is no field 'within_node.latency_usec' (did you mean 'latency_us'?)");
  CHECK(refusal_of(replaced(two_nodes, "\"nodes\": 2", "\"nodes\": 0")) ==
        "'cluster.json': nodes must be a whole number from 1 to 1048576");
  CHECK(refusal_of(replaced(two_nodes, "\"nodes\": 2", "\"nodes\": 2.5")) ==
        "'cluster.json': nodes must be a whole number from 1 to 1048576");
  CHECK(refusal_of(replaced(two_nodes, "450", "\"fast\"")) ==
        "'cluster.json': within_node.gb_per_s must be a number from 0.001 to 1000000");
  CHECK(refusal_of(replaced(two_nodes, "450", "NaN")) ==
        "'cluster.json': within_node.gb_per_s must be a number from 0.001 to 1000000");
  CHECK(refusal_of("[]").starts_with("'cluster.json' "));
  CHECK(refusal_of(two_nodes.substr(0, 40)).starts_with("'cluster.json' "));
}

TEST_CASE("no change of a few bytes makes the reader do anything but read or refuse") {
  std::mt19937 random(5);
  int read = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = two_nodes;
    for (unsigned change = 0; change < 1 + random() % 3; ++change)
      text[random() % text.size()] = static_cast<char>(random() % 256);
    try {
      const ClusterDescription cluster = parse_cluster(text, "cluster.json");
      CHECK(cluster.gpus() >= 1);
      ++read;
    } catch (const InputFileError&) {}
  }
  CHECK(read > 0);
}

TEST_CASE(
    "a ring of n ranks sends (n - 1) / n of what is gathered, and twice that of what is reduced for all") {
  CHECK(bytes_sent({TransportOperation::all_reduce, 800}, 4) == 1200);
  CHECK(bytes_sent({TransportOperation::reduce_scatter, 800}, 4) == 600);
  CHECK(bytes_sent({TransportOperation::all_gather, 800}, 8) == 700);
  CHECK(bytes_sent({TransportOperation::all_to_all, 800}, 2) == 400);
  CHECK(bytes_sent({TransportOperation::send, 800}, 4) == 800);
  CHECK(bytes_sent({TransportOperation::receive, 800}, 4) == 0);
  const ClusterLink link{.gigabytes_per_second = 1, .microseconds = 2};
  CHECK(seconds_of({TransportOperation::all_reduce, 4'000'000}, 2, link) == doctest::Approx(4e-3 + 4e-6));
  CHECK(seconds_of({TransportOperation::all_reduce, 4'000'000}, 1, link) == 0);
}
