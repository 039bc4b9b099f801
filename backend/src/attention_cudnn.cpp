// SPDX-License-Identifier: Apache-2.0
#include "attention_cudnn.hpp"

#include <encore/backend/error.hpp>

#include <cudnn_frontend.h>

#include <cstring>
#include <map>
#include <unordered_map>
#include <vector>

namespace encore::backend::impl {

namespace {

namespace frontend = cudnn_frontend;
using Graph = frontend::graph::Graph;
using Tensor = std::shared_ptr<frontend::graph::Tensor_attributes>;

constexpr std::int64_t log_sum_exp_identifier = cudnn_operands;
constexpr std::int64_t sinks_identifier = cudnn_operands + 1;

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw DeviceError(std::string(what) + ": cuDNN says " + cudnnGetErrorString(status));
}

std::vector<std::int64_t> words_of(const CudnnAttentionShape& shape) {
  std::int64_t scale = 0;
  std::memcpy(&scale, &shape.scale, sizeof shape.scale);
  std::vector<std::int64_t> words = {shape.batch, shape.tokens, shape.heads, shape.kv_heads, shape.head_dim,
                                     scale,       shape.window, shape.sinks, shape.backward};
  const int operands = shape.backward ? cudnn_operands : cudnn_forward_operands;
  for (int i = 0; i < operands; ++i)
    words.insert(words.end(), {shape.strides[i].batch, shape.strides[i].token, shape.strides[i].head});
  return words;
}

std::int64_t heads_of(const CudnnAttentionShape& shape, int operand) {
  const bool of_keys =
      operand == key || operand == value || operand == key_gradient || operand == value_gradient;
  return of_keys ? shape.kv_heads : shape.heads;
}

std::vector<std::int64_t> extents_of(const CudnnAttentionShape& shape, int operand) {
  return {shape.batch, heads_of(shape, operand), shape.tokens, shape.head_dim};
}
std::vector<std::int64_t> strides_of(const CudnnAttentionShape& shape, int operand) {
  const CudnnStrides& strides = shape.strides[operand];
  return {strides.batch, strides.head, strides.token, 1};
}

Tensor input(Graph& graph, const CudnnAttentionShape& shape, int operand, const char* name) {
  return graph.tensor(frontend::graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(operand)
                          .set_dim(extents_of(shape, operand))
                          .set_stride(strides_of(shape, operand)));
}

void make_output(const Tensor& tensor, const CudnnAttentionShape& shape, int operand) {
  tensor->set_output(true)
      .set_uid(operand)
      .set_dim(extents_of(shape, operand))
      .set_stride(strides_of(shape, operand));
}

std::vector<std::int64_t> row_extents(const CudnnAttentionShape& shape) {
  return {shape.batch, shape.heads, shape.tokens, 1};
}
std::vector<std::int64_t> row_strides(const CudnnAttentionShape& shape) {
  return {shape.heads * shape.tokens, shape.tokens, 1, 1};
}

/// Query q sees keys k with k <= q and, if there is a window, k + window > q.
template <class Attributes>
void set_mask(Attributes& attributes, const CudnnAttentionShape& shape) {
  attributes.set_diagonal_alignment(frontend::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (shape.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(shape.window));
}

void add_forward(Graph& graph, const CudnnAttentionShape& shape) {
  auto attributes = frontend::graph::SDPA_attributes()
                        .set_name("attention")
                        .set_generate_stats(true)
                        .set_attn_scale(shape.scale);
  set_mask(attributes, shape);
  if (shape.sinks)
    attributes.set_sink_token(graph.tensor(frontend::graph::Tensor_attributes()
                                               .set_name("sinks")
                                               .set_uid(sinks_identifier)
                                               .set_data_type(frontend::DataType_t::FLOAT)
                                               .set_dim({1, shape.heads, 1, 1})
                                               .set_stride({shape.heads, 1, 1, 1})));
  auto [result, log_sum_exp] =
      graph.sdpa(input(graph, shape, query, "query"), input(graph, shape, key, "key"),
                 input(graph, shape, value, "value"), attributes);
  make_output(result, shape, output);
  log_sum_exp->set_output(true)
      .set_data_type(frontend::DataType_t::FLOAT)
      .set_uid(log_sum_exp_identifier)
      .set_dim(row_extents(shape))
      .set_stride(row_strides(shape));
}

void add_backward(Graph& graph, const CudnnAttentionShape& shape) {
  auto attributes = frontend::graph::SDPA_backward_attributes()
                        .set_name("attention backward")
                        .set_attn_scale(shape.scale)
                        .set_deterministic_algorithm(true);
  set_mask(attributes, shape);
  const Tensor log_sum_exp = graph.tensor(frontend::graph::Tensor_attributes()
                                              .set_name("log_sum_exp")
                                              .set_uid(log_sum_exp_identifier)
                                              .set_data_type(frontend::DataType_t::FLOAT)
                                              .set_dim(row_extents(shape))
                                              .set_stride(row_strides(shape)));
  auto [for_query, for_key, for_value] =
      graph.sdpa_backward(input(graph, shape, query, "query"), input(graph, shape, key, "key"),
                          input(graph, shape, value, "value"), input(graph, shape, output, "output"),
                          input(graph, shape, output_gradient, "output_gradient"), log_sum_exp, attributes);
  make_output(for_query, shape, query_gradient);
  make_output(for_key, shape, key_gradient);
  make_output(for_value, shape, value_gradient);
}

}  // namespace

class CudnnAttention::Plan {
 public:
  Graph graph;
  std::size_t workspace_bytes = 0;
  bool backward = false;
  bool sinks = false;
  bool ran = false;
  bool usable = false;
  std::string refusal;
};

struct CudnnAttention::State {
  cudnnHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;  ///< that of the handle
  std::map<std::vector<std::int64_t>, std::unique_ptr<Plan>> plans;

  ~State() {
    plans.clear();
    if (handle != nullptr) (void)cudnnDestroy(handle);
  }

  std::unique_ptr<Plan> build(const CudnnAttentionShape& shape) const {
    auto plan = std::make_unique<Plan>();
    plan->backward = shape.backward;
    plan->sinks = shape.sinks && !shape.backward;  // Backward has them in log_sum_exp.
    plan->graph.set_io_data_type(frontend::DataType_t::BFLOAT16)
        .set_intermediate_data_type(frontend::DataType_t::FLOAT)
        .set_compute_data_type(frontend::DataType_t::FLOAT);
    shape.backward ? add_backward(plan->graph, shape) : add_forward(plan->graph, shape);
    frontend::error_t built = plan->graph.build(handle, {frontend::HeurMode_t::A});
    std::int64_t bytes = 0;
    if (built.is_bad() || plan->graph.get_workspace_size(bytes).is_bad()) {
      plan->refusal = built.get_message();
      return plan;
    }
    plan->workspace_bytes = static_cast<std::size_t>(bytes);
    plan->usable = true;
    return plan;
  }
};

CudnnAttention::CudnnAttention() : state_(std::make_unique<State>()) {
  check(cudnnCreate(&state_->handle), "starting cuDNN");
}

CudnnAttention::~CudnnAttention() = default;

CudnnAttention::Plan* CudnnAttention::plan(const CudnnAttentionShape& shape, std::string* refusal) {
  std::unique_ptr<Plan>& plan = state_->plans[words_of(shape)];
  if (plan == nullptr) plan = state_->build(shape);
  if (plan->usable) return plan.get();
  if (refusal != nullptr) *refusal = plan->refusal;
  return nullptr;
}

bool CudnnAttention::knows(const CudnnAttentionShape& shape) const {
  return state_->plans.find(words_of(shape)) != state_->plans.end();
}

std::size_t CudnnAttention::workspace_bytes(const Plan& plan) { return plan.workspace_bytes; }

bool CudnnAttention::take_first_run(Plan& plan) {
  const bool first = !plan.ran;
  plan.ran = true;
  return first;
}

void CudnnAttention::run(const Plan& plan, const std::array<void*, cudnn_operands>& data,
                         const CudnnRows& rows, void* workspace, void* stream) {
  if (state_->stream != stream) {
    check(cudnnSetStream(state_->handle, static_cast<cudaStream_t>(stream)), "giving cuDNN its stream");
    state_->stream = static_cast<cudaStream_t>(stream);
  }
  std::unordered_map<std::int64_t, void*> pointers;
  const int operands = plan.backward ? cudnn_operands : cudnn_forward_operands;
  for (int i = 0; i < operands; ++i) pointers.emplace(i, data[i]);
  pointers.emplace(log_sum_exp_identifier, rows.log_sum_exp);
  if (plan.sinks) pointers.emplace(sinks_identifier, const_cast<float*>(rows.sinks));
  frontend::error_t status = plan.graph.execute(state_->handle, pointers, workspace);
  if (status.is_bad())
    throw DeviceError(std::string(plan.backward ? "attention backward" : "attention forward") +
                      ": cuDNN says " + status.get_message());
}

std::string CudnnAttention::description() const {
  const std::size_t version = cudnnGetVersion();
  return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace encore::backend::impl
