// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>
#include <encore/backend/stream.hpp>
#include <encore/model/files/network_description.hpp>
#include <encore/model/user_view.hpp>

#include <filesystem>
#include <memory>

namespace encore::model {

/// What AdamW works with; the meanings and defaults of torch.optim.AdamW. clip: largest norm of the gradients, 0 for
/// any. skip_above: a norm above it, or one that is not finite, leaves the network as it is; 0: no norm does.
struct NetworkOptimizer {
  double learning_rate = 1e-3;
  double weight_decay = 1e-2;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double clip = 0;
  double skip_above = 0;
};

/// A network from the features of a cell to some outputs, for use inside a simulation: inference and training work on
/// the caller's Views in place, allocate nothing, wait for nothing, and so may be recorded (backend::RecordedGraph)
/// together with the simulation's own kernels. Everything that changes from step to step is read from device memory.
///
///   output = W_n a(... a(W_1 input + b_1) ...) + b_n
///
/// All memory is one allocation, made by the constructor, plus the workspace of the matrix products. T is the type of
/// weights, inputs and outputs: float or bfloat16, and double on Serial. Sums, gradients and moments are float (double
/// for double); bfloat16 weights have a float master copy. The same calls give the same bits, eager or replayed, on any
/// number of host threads. Graphs that recorded a network must not outlive it. Neither copied nor moved; one thread at
/// a time.
template <class Space, class T = float>
class MultilayerPerceptron {
 public:
  using Sum = backend::Accumulator<T>;

  /// Weights are normal numbers of variance 1 / inputs of their layer (2 / inputs behind a hidden layer), biases 0.
  /// Throws ConfigurationError for an impossible description, OutOfMemoryError.
  MultilayerPerceptron(backend::Stream<Space>& stream, const NetworkDescription& description);
  ~MultilayerPerceptron();
  MultilayerPerceptron(const MultilayerPerceptron&) = delete;
  MultilayerPerceptron& operator=(const MultilayerPerceptron&) = delete;

  const NetworkDescription& description() const;
  std::int64_t features() const { return description().widths.front(); }
  std::int64_t outputs() const { return description().widths.back(); }
  /// Bytes of the one allocation.
  std::size_t bytes() const;

  /// outputs = network(inputs). inputs [cells, features] of either layout, outputs [cells, outputs] row-major (see
  /// RowOrder), cells at most description().rows. Throws ConfigurationError naming the view that does not fit. May be
  /// recorded.
  template <class Inputs, class Outputs>
  void forward(backend::Stream<Space>& stream, const Inputs& inputs, const Outputs& outputs) {
    run_forward(stream, taken("inputs", inputs, features()), given("outputs", outputs));
  }

  /// One step of training towards targets [cells, outputs], of either layout: forward() to memory of its own, and
  /// learn(). May be recorded. Throws ConfigurationError where description().trains is false.
  template <class Inputs, class Targets>
  void train(backend::Stream<Space>& stream, const Inputs& inputs, const Targets& targets) {
    run_train(stream, taken("inputs", inputs, features()), taken("targets", targets, outputs()));
  }

  /// The rest of a step of training after forward(stream, inputs, outputs), which is not computed again: the mean
  /// squared error of the outputs, its gradients, and update(). May be recorded. Throws ConfigurationError unless the
  /// last call was that forward().
  template <class Inputs, class Outputs, class Targets>
  void learn(backend::Stream<Space>& stream, const Inputs& inputs, const Outputs& outputs_of_forward,
             const Targets& targets) {
    run_learn(stream, taken("inputs", inputs, features()), taken("outputs", outputs_of_forward, outputs()),
              taken("targets", targets, outputs()));
  }

  /// For a loss of one's own: from its gradient [cells, outputs] with respect to the outputs of the last forward(), row-
  /// major without gaps, the gradients of all parameters, and of the inputs [cells, features], row-major, if wanted.
  /// Followed by update(). May be recorded. Throws as learn() does.
  template <class Inputs, class Gradient>
  void backward(backend::Stream<Space>& stream, const Inputs& inputs, const Gradient& output_gradient) {
    run_backward(stream, taken("inputs", inputs, features()), gradient(output_gradient), {});
  }
  template <class Inputs, class Gradient, class InputGradient>
  void backward(backend::Stream<Space>& stream, const Inputs& inputs, const Gradient& output_gradient,
                const InputGradient& input_gradient) {
    run_backward(stream, taken("inputs", inputs, features()), gradient(output_gradient),
                 user_matrix<T, Space>("input_gradient", input_gradient, description().rows, features(),
                                       RowOrder::row_major));
  }

  /// One step of AdamW with the gradients that are there; biases do not decay. May be recorded.
  void update(backend::Stream<Space>& stream);

  /// For all updates from now on, also those of graphs recorded before. Throws ConfigurationError naming a value that
  /// is impossible, CaptureError while recording.
  void set_optimizer(backend::Stream<Space>& stream, const NetworkOptimizer& optimizer);
  /// In device memory, [1]: a kernel may write it, so that a schedule is part of a recorded step.
  backend::Vector<double, Space> learning_rate() const;

  /// The error before the last learn() or train(), and the norm of the gradients of the last update(). Wait for the
  /// stream; throw CaptureError while recording.
  double loss(backend::Stream<Space>& stream) const;
  double gradient_norm(backend::Stream<Space>& stream) const;
  /// The same in device memory, [1].
  backend::Vector<const double, Space> loss() const;

  /// All weights, layer by layer, and then all biases, each from a multiple of 16 on; zeros between. Of a network that
  /// does not train the others are empty, as is master() unless T is bfloat16.
  backend::Vector<T, Space> parameters() const;
  backend::Vector<Sum, Space> gradients() const;
  backend::Vector<Sum, Space> first_moment() const;
  backend::Vector<Sum, Space> second_moment() const;
  backend::Vector<Sum, Space> master() const;

  /// Writes weights, the optimizer's state and the number of updates as safetensors; PyTorch finds the weights under
  /// the names of a torch.nn.Sequential. An older file stays until the new one is whole. Waits for the stream. Throws
  /// OutputFileError.
  void save(backend::Stream<Space>& stream, const std::filesystem::path& path) const;
  /// Reads such a file, or one that has weights only, from which training begins anew. Throws InputFileError naming the
  /// tensor that is missing, unknown or of another shape; then nothing has changed. CaptureError while recording.
  void load(backend::Stream<Space>& stream, const std::filesystem::path& path);

 private:
  using Taken = kernels::StridedMatrix<const T>;
  using Given = kernels::StridedMatrix<T>;

  template <class View>
  Taken taken(const char* role, const View& view, std::int64_t columns) const {
    return user_matrix<const T, Space>(role, view, description().rows, columns, RowOrder::either);
  }
  template <class View>
  Given given(const char* role, const View& view) const {
    return user_matrix<T, Space>(role, view, description().rows, outputs(), RowOrder::row_major);
  }
  template <class View>
  Taken gradient(const View& view) const {
    return user_matrix<const T, Space>("output_gradient", view, description().rows, outputs(),
                                       RowOrder::row_major);
  }

  void run_forward(backend::Stream<Space>& stream, Taken inputs, Given outputs);
  void run_train(backend::Stream<Space>& stream, Taken inputs, Taken targets);
  void run_learn(backend::Stream<Space>& stream, Taken inputs, Taken outputs, Taken targets);
  void run_backward(backend::Stream<Space>& stream, Taken inputs, Taken output_gradient,
                    Given input_gradient);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace encore::model
