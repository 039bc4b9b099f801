// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/model/files/safetensors_writer.hpp>
#include <encore/model/multilayer_perceptron.hpp>

#include "finite_difference.hpp"
#include "random_values.hpp"
#include "spaces.hpp"
#include "typed.hpp"

#include <cmath>
#include <cstdio>
#include <filesystem>

using namespace encore;
using namespace encore::tests;
using backend::Stream;
using model::MultilayerPerceptron, model::NetworkActivation, model::NetworkDescription,
    model::NetworkOptimizer;

namespace {

template <class T, class Layout, class Space>
using View = Kokkos::View<T**, Layout, Space>;

/// A caller's managed View with these values, given row by row.
template <class Layout, class Space, class T>
View<T, Layout, Space> view_of(const std::string& label, const std::vector<double>& values,
                               std::int64_t columns) {
  View<T, Layout, Space> view(label, values.size() / columns, columns);
  const auto host = Kokkos::create_mirror_view(view);
  for (std::size_t i = 0; i < values.size(); ++i) host(i / columns, i % columns) = static_cast<T>(values[i]);
  Kokkos::deep_copy(view, host);
  Kokkos::fence();
  return view;
}

template <class View>
std::vector<double> values_of(const View& view) {
  Kokkos::fence();
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  std::vector<double> values;
  for (std::size_t i = 0; i < host.extent(0); ++i)
    for (std::size_t j = 0; j < host.extent(1); ++j) values.push_back(static_cast<double>(host(i, j)));
  return values;
}

template <class Space, class T>
std::vector<double> array_of(Stream<Space>& stream, backend::Vector<T, Space> array) {
  std::vector<std::remove_const_t<T>> host(array.size());
  stream.copy_to_host(host.data(), array.data(), host.size() * sizeof(T), "test");
  stream.synchronize("test");
  return {host.begin(), host.end()};
}

/// The same network in float64, one cell at a time.
struct Reference {
  std::vector<std::int64_t> widths;
  NetworkActivation activation;
  std::vector<std::vector<double>> weights, biases;

  /// From the library's order of parameters.
  Reference(const NetworkDescription& description, const std::vector<double>& parameters)
      : widths(description.widths), activation(description.activation) {
    std::size_t at = 0;
    const auto take = [&](std::int64_t count) {
      std::vector<double> values(parameters.begin() + at, parameters.begin() + at + count);
      at += (count + 15) / 16 * 16;
      return values;
    };
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) weights.push_back(take(widths[l] * widths[l + 1]));
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) biases.push_back(take(widths[l + 1]));
    CHECK(at == parameters.size());
  }

  double activated(double x) const {
    switch (activation) {
      case NetworkActivation::gelu: return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
      case NetworkActivation::gelu_tanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
      case NetworkActivation::relu_squared: return x > 0 ? x * x : 0;
    }
    return 0;
  }

  std::vector<double> outputs(const std::vector<double>& inputs) const {
    std::vector<double> all;
    for (std::size_t cell = 0; cell < inputs.size() / widths.front(); ++cell) {
      std::vector<double> from(inputs.begin() + cell * widths.front(),
                               inputs.begin() + (cell + 1) * widths.front());
      for (std::size_t l = 0; l < weights.size(); ++l) {
        std::vector<double> to = biases[l];
        for (std::size_t o = 0; o < to.size(); ++o) {
          for (std::size_t i = 0; i < from.size(); ++i) to[o] += weights[l][o * from.size() + i] * from[i];
          if (l + 1 < weights.size()) to[o] = activated(to[o]);
        }
        from = to;
      }
      all.insert(all.end(), from.begin(), from.end());
    }
    return all;
  }
};

double error_of(const std::vector<double>& is, const std::vector<double>& should_be) {
  double sum = 0;
  for (std::size_t i = 0; i < is.size(); ++i) sum += (is[i] - should_be[i]) * (is[i] - should_be[i]);
  return sum / static_cast<double>(is.size());
}

constexpr NetworkActivation activations[] = {NetworkActivation::gelu, NetworkActivation::gelu_tanh,
                                             NetworkActivation::relu_squared};

struct TemporaryFile {
  std::filesystem::path path;
  explicit TemporaryFile(const char* name) : path(std::filesystem::temp_directory_path() / name) {}
  ~TemporaryFile() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE("a network's outputs are those of float64, for inputs of either layout and of a subview") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    for (const auto& widths : {std::vector<std::int64_t>{3, 2}, {1, 8, 1}, {5, 33, 64, 2}}) {
      for (const NetworkActivation activation : activations) {
        const std::int64_t cells = 77, features = widths.front();
        INFO(features, " ", model::name_of(activation));
        Stream<Space> stream;
        const NetworkDescription description{.widths = widths, .rows = 100, .activation = activation};
        MultilayerPerceptron<Space, T> network(stream, description);
        const auto x = normal_values<T>(cells * features, 3);
        const auto expected =
            Reference(description, array_of<Space>(stream, network.parameters())).outputs(x);
        // bfloat16 rounds between the layers.
        const Tolerance allowed = sizeof(T) == 2 ? Tolerance{2e-2, 4e-2} : tolerance<T>();

        const auto right = view_of<Kokkos::LayoutRight, Space, T>("x", x, features);
        View<T, Kokkos::LayoutRight, Space> outputs("outputs", cells, widths.back());
        network.forward(stream, right, outputs);
        check_close(values_of(outputs), expected, allowed);

        const auto left = view_of<Kokkos::LayoutLeft, Space, T>("x", x, features);
        View<T, Kokkos::LayoutRight, Space> again("again", cells, widths.back());
        network.forward(stream, Kokkos::View<const T**, Kokkos::LayoutLeft, Space>(left), again);
        check_close(values_of(again), expected, allowed);

        // Inputs and outputs inside wider arrays, whose other columns stay as they are.
        View<T, Kokkos::LayoutRight, Space> wide("wide", cells, features + 3),
            wide_outputs("wide", cells, widths.back() + 2);
        const auto inside =
            Kokkos::subview(wide, Kokkos::ALL, std::pair<std::int64_t, std::int64_t>(1, features + 1));
        Kokkos::deep_copy(inside, right);
        Kokkos::deep_copy(wide_outputs, T(7.0F));
        Kokkos::fence();
        network.forward(stream, inside,
                        Kokkos::subview(wide_outputs, Kokkos::ALL,
                                        std::pair<std::int64_t, std::int64_t>(1, widths.back() + 1)));
        std::vector<double> surrounded;
        for (std::int64_t cell = 0; cell < cells; ++cell) {
          surrounded.push_back(7);
          surrounded.insert(surrounded.end(), expected.begin() + cell * widths.back(),
                            expected.begin() + (cell + 1) * widths.back());
          surrounded.push_back(7);
        }
        check_close(values_of(wide_outputs), surrounded, allowed);
      }
    }
  });
}

TEST_CASE("a network's gradients, of parameters and inputs, are finite differences of the loss") {
  using Space = Kokkos::Serial;
  // The second has cells enough for weight gradients in parts.
  for (const std::int64_t cells : {5, 2100}) {
    for (const NetworkActivation activation : activations) {
      INFO(cells, " ", model::name_of(activation));
      Stream<Space> stream;
      const NetworkDescription description{.widths = {2, 3, 4, 2}, .rows = cells, .activation = activation};
      MultilayerPerceptron<Space, double> network(stream, description);
      network.set_optimizer(stream, {.learning_rate = 0});
      const auto x = normal_values<double>(cells * 2, 1), y = normal_values<double>(cells * 2, 2);
      const auto inputs = view_of<Kokkos::LayoutLeft, Space, double>("x", x, 2);
      const auto targets = view_of<Kokkos::LayoutRight, Space, double>("y", y, 2);
      const auto parameters = array_of<Space>(stream, network.parameters());
      network.train(stream, inputs, targets);
      const double loss = network.loss(stream);
      const auto expected = Reference(description, parameters).outputs(x);
      CHECK(loss == doctest::Approx(error_of(expected, y)).epsilon(1e-12));
      const auto gradients = array_of<Space>(stream, network.gradients());
      check_gradient(
          [&](const std::vector<double>& at) { return error_of(Reference(description, at).outputs(x), y); },
          parameters, gradients);

      // A loss of one's own: the same error, twice.
      View<double, Kokkos::LayoutRight, Space> outputs("outputs", cells, 2), to("gradient", cells, 2),
          back("input gradient", cells, 2);
      network.forward(stream, inputs, outputs);
      for (std::int64_t i = 0; i < 2 * cells; ++i)
        to.data()[i] = 2 * (2 * (outputs.data()[i] - y[i]) / static_cast<double>(2 * cells));
      network.backward(stream, inputs, to, back);
      std::vector<double> twice = gradients;
      for (double& value : twice) value *= 2;
      check_close(array_of<Space>(stream, network.gradients()), twice, {1e-12, 1e-12});
      if (cells > 100) continue;
      check_gradient(
          [&](const std::vector<double>& at) {
            return 2 * error_of(Reference(description, parameters).outputs(at), y);
          },
          x, values_of(back));
    }
  }
}

namespace {

/// Everything that training changes, as bytes.
template <class Space, class T>
std::vector<std::byte> state_of(Stream<Space>& stream, const MultilayerPerceptron<Space, T>& network) {
  std::vector<std::byte> all;
  const auto add = [&](const auto& array) {
    const std::size_t begin = all.size(),
                      bytes = array.size() * sizeof(typename std::decay_t<decltype(array)>::value_type);
    all.resize(begin + bytes);
    stream.copy_to_host(all.data() + begin, array.data(), bytes, "test");
  };
  add(network.parameters()), add(network.gradients()), add(network.first_moment()),
      add(network.second_moment());
  add(network.master()), add(network.loss());
  stream.synchronize("test");
  return all;
}

template <class Space, class T>
struct Problem {
  static constexpr std::int64_t cells = 2100;

  Problem()
      : inputs(view_of<Kokkos::LayoutLeft, Space, T>("x", normal_values<T>(3 * cells, 1), 3)),
        targets(view_of<Kokkos::LayoutRight, Space, T>("y", wanted(), 2)),
        outputs("outputs", cells, 2),
        network(stream, {.widths = {3, 32, 48, 2}, .rows = cells, .seed = 5}) {
    network.set_optimizer(stream, {.learning_rate = 1e-2, .clip = 1, .skip_above = 1e6});
  }
  static std::vector<double> wanted() {
    const auto x = normal_values<T>(3 * cells, 1);
    std::vector<double> y;
    for (std::int64_t i = 0; i < cells; ++i) {
      y.push_back(x[3 * i] * x[3 * i + 1]);
      y.push_back(std::sin(x[3 * i + 2]));
    }
    return y;
  }

  Stream<Space> stream;
  View<T, Kokkos::LayoutLeft, Space> inputs;
  View<T, Kokkos::LayoutRight, Space> targets, outputs;
  MultilayerPerceptron<Space, T> network;
};

}  // namespace

TEST_CASE("training replays to the bit over many steps, learns, and hosts agree with each other") {
  std::vector<std::byte> of_hosts;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    Problem<Space, T> eager, replayed;
    const auto step = [](Problem<Space, T>& p) {
      p.network.train(p.stream, p.inputs, p.targets);
      p.network.forward(p.stream, p.inputs, p.outputs);
    };
    const auto start = state_of(replayed.stream, replayed.network);
    backend::RecordedGraph<Space> graph(replayed.stream, "step", [&] { step(replayed); });
    CHECK(state_of(replayed.stream, replayed.network) == start);
    double first = 0;
    for (int i = 0; i < 60; ++i) {
      step(eager);
      graph.replay();
      if (i == 0) first = eager.network.loss(eager.stream);
      // A change of the learning rate reaches a graph recorded before.
      if (i == 30)
        for (auto* p : {&eager, &replayed})
          p->network.set_optimizer(p->stream, {.learning_rate = 2e-3, .clip = 1});
    }
    CHECK(state_of(eager.stream, eager.network) == state_of(replayed.stream, replayed.network));
    CHECK(values_of(eager.outputs) == values_of(replayed.outputs));
    CHECK(eager.network.loss(eager.stream) < 0.3 * first);
    CHECK(eager.network.gradient_norm(eager.stream) > 0);
    if constexpr (backend::is_host_space<Space> && std::is_same_v<T, float>) {
      if (of_hosts.empty()) of_hosts = state_of(eager.stream, eager.network);
      CHECK(state_of(eager.stream, eager.network) == of_hosts);
    }
  });
}

TEST_CASE("learning from a forward pass is the same as training") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    Problem<Space, T> trained, learned;
    trained.network.train(trained.stream, trained.inputs, trained.targets);
    learned.network.forward(learned.stream, learned.inputs, learned.outputs);
    learned.network.learn(learned.stream, learned.inputs, learned.outputs, learned.targets);
    CHECK(state_of(trained.stream, trained.network) == state_of(learned.stream, learned.network));
    // The activations have been used up.
    CHECK_THROWS_AS(learned.network.learn(learned.stream, learned.inputs, learned.outputs, learned.targets),
                    ConfigurationError);
  });
}

TEST_CASE("a gradient that is not finite leaves a network that skips such steps as it is") {
  for_each_space([]<class Space>(Types<Space>) {
    Problem<Space, float> p;
    Kokkos::deep_copy(p.targets, std::nanf(""));
    Kokkos::fence();
    const auto before = array_of<Space>(p.stream, p.network.parameters());
    p.network.train(p.stream, p.inputs, p.targets);
    CHECK(std::isnan(p.network.loss(p.stream)));
    CHECK(array_of<Space>(p.stream, p.network.parameters()) == before);
  });
}

TEST_CASE("a saved network goes on exactly, and infers the same without the memory of training") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    const TemporaryFile file("encore_test_network.safetensors");
    Problem<Space, T> p, resumed;
    for (int i = 0; i < 5; ++i) p.network.train(p.stream, p.inputs, p.targets);
    p.network.save(p.stream, file.path);
    resumed.network.load(resumed.stream, file.path);
    NetworkDescription description = model::described_in(file.path);
    CHECK(description.widths == p.network.description().widths);
    CHECK(description.activation == p.network.description().activation);
    description.rows = p.cells;
    description.trains = false;
    MultilayerPerceptron<Space, T> inference(p.stream, description);
    inference.load(p.stream, file.path);
    CHECK(2 * inference.bytes() < p.network.bytes());
    inference.forward(p.stream, p.inputs, p.outputs);
    resumed.network.forward(resumed.stream, resumed.inputs, resumed.outputs);
    CHECK(values_of(p.outputs) == values_of(resumed.outputs));
    for (auto* each : {&p, &resumed})
      for (int i = 0; i < 3; ++i) each->network.train(each->stream, each->inputs, each->targets);
    CHECK(state_of(p.stream, p.network) == state_of(resumed.stream, resumed.network));
    CHECK_THROWS_AS(inference.train(p.stream, p.inputs, p.targets), ConfigurationError);
    CHECK_THROWS_AS(inference.update(p.stream), ConfigurationError);
  });
}

TEST_CASE("weights trained elsewhere are read under the names of PyTorch, and strangers among them refused") {
  using Space = Kokkos::Serial;
  const TemporaryFile file("encore_test_torch.safetensors");
  const auto write = [&](const char* last_bias, std::int64_t outputs) {
    model::SafetensorsWriter writer(file.path);
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>> tensors{
        {"0.weight", {4, 2}}, {"0.bias", {4}}, {"2.weight", {1, 4}}, {last_bias, {outputs}}};
    for (const auto& [name, shape] : tensors) writer.add(name, model::StoredType::f32, shape);
    for (const auto& [name, shape] : tensors) {
      std::int64_t count = 1;
      for (const std::int64_t extent : shape) count *= extent;
      const std::vector<float> values(count, name == "0.bias" ? 1.0F : 0.5F);
      writer.write(name, std::as_bytes(std::span(values)));
    }
    writer.commit();
  };
  Stream<Space> stream;
  write("2.bias", 1);
  NetworkDescription description = model::described_in(
      file.path, {.rows = 1, .activation = NetworkActivation::relu_squared, .trains = false});
  CHECK(description.widths == std::vector<std::int64_t>{2, 4, 1});
  MultilayerPerceptron<Space, float> network(stream, description);
  network.load(stream, file.path);
  const auto inputs = view_of<Kokkos::LayoutRight, Space, float>("x", {2.0, 4.0}, 2);
  Kokkos::View<float*, Space> output("output", 1);  // One column may be a vector.
  network.forward(stream, inputs, output);
  CHECK(output(0) == 4 * 0.5F * 16 + 0.5F);  // Each hidden value is (1 + 2 / 2 + 4 / 2)^2.

  const auto before = array_of<Space>(stream, network.parameters());
  write("3.bias", 1);
  CHECK_THROWS_AS(network.load(stream, file.path), InputFileError);
  write("2.bias", 2);
  CHECK_THROWS_AS(network.load(stream, file.path), InputFileError);
  CHECK_THROWS_AS(network.load(stream, "/nowhere/network.safetensors"), InputFileError);
  CHECK(array_of<Space>(stream, network.parameters()) == before);
}

namespace {

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("views that do not fit are refused by their names before anything is queued") {
  for_each_space([]<class Space>(Types<Space>) {
    using Right = View<float, Kokkos::LayoutRight, Space>;
    using Left = View<float, Kokkos::LayoutLeft, Space>;
    Stream<Space> stream;
    MultilayerPerceptron<Space> network(stream, {.widths = {3, 8, 2}, .rows = 10});
    const Right inputs("inputs", 10, 3), outputs("outputs", 10, 2);
    const auto launches = stream.counters().launches;
    const auto names = [&](const char* part, const auto& in, const auto& out) {
      const std::string reason = refusal_of([&] { network.forward(stream, in, out); });
      CAPTURE(reason);
      CHECK(reason.find(part) != std::string::npos);
    };
    names("inputs: the view 'speed' [10, 4]", Right("speed", 10, 4), outputs);
    names("inputs: the view 'long' [11, 3]", Right("long", 11, 3), outputs);
    names("inputs: the view 'none' [0, 3]", Right("none", 0, 3), outputs);
    names("outputs: the view 'left' [10, 2] has strides (1, 10)", inputs, Left("left", 10, 2));
    names(
        "outputs: the view 'left' [10, 2] has strides (1, 10), but the columns of a row must be neighbours "
        "(stride 1): "
        "declare it with Kokkos::LayoutRight",
        inputs, Left("left", 10, 2));
    names("10 cells and its outputs 9", inputs, Right("short", 9, 2));
    const Right twice("twice", 10, 6);
    names("has strides (6, 2)",
          Kokkos::View<float**, Kokkos::LayoutStride, Space>(twice.data(), Kokkos::LayoutStride(10, 6, 3, 2)),
          outputs);
    CHECK(stream.counters().launches == launches);
    CHECK_THROWS_AS(network.learn(stream, inputs, outputs, outputs), ConfigurationError);
  });
}

TEST_CASE("impossible descriptions and optimizers are refused, and waiting inside a recording is") {
  using Space = Kokkos::Serial;
  using Network = MultilayerPerceptron<Space>;
  Stream<Space> stream;
  CHECK_THROWS_AS(Network(stream, {.widths = {3}, .rows = 1}), ConfigurationError);
  CHECK_THROWS_AS(Network(stream, {.widths = {3, 0, 1}, .rows = 1}), ConfigurationError);
  CHECK_THROWS_AS(Network(stream, {.widths = {3, 1}, .rows = 0}), ConfigurationError);
  CHECK_THROWS_AS(Network(stream, {.widths = {1000000, 1000000}, .rows = std::int64_t(1) << 30}),
                  OutOfMemoryError);
  Network network(stream, {.widths = {3, 1}, .rows = 1});
  CHECK_THROWS_AS(network.set_optimizer(stream, {.learning_rate = -1}), ConfigurationError);
  CHECK_THROWS_AS(network.set_optimizer(stream, {.beta2 = 1}), ConfigurationError);
  CHECK_THROWS_AS(network.set_optimizer(stream, {.epsilon = 0}), ConfigurationError);
  CHECK_THROWS_AS(network.set_optimizer(stream, {.clip = std::nan("")}), ConfigurationError);
  CHECK_THROWS_AS(backend::RecordedGraph<Space>(stream, "step", [&] { (void)network.loss(stream); }),
                  CaptureError);
  CHECK_THROWS_AS(backend::RecordedGraph<Space>(stream, "step", [&] { network.set_optimizer(stream, {}); }),
                  CaptureError);
}
