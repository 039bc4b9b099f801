// SPDX-License-Identifier: Apache-2.0
#include "tape_replayer.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/tape.hpp>

namespace encore::backend {

Tape::Tape() : dependences_(std::make_unique<Dependences>()) {}
Tape::~Tape() = default;
Tape::Tape(Tape&&) noexcept = default;
Tape& Tape::operator=(Tape&&) noexcept = default;

void Tape::append_operation(const TapeOperation& operation, Accesses accesses) {
  require<InternalError>(!finished_, "a kernel was added to a tape whose recording had ended");
  operations_.push_back(operation);
  dependences_->add({accesses.begin(), accesses.size()});
}

void Tape::finish() {
  finished_ = true;
  dependences_->finish();
  operations_.shrink_to_fit();
  functors_.shrink_to_fit();
}

void Tape::replay(int threads) {
  if (!replayer_ || replayer_->threads() != threads) {
    if (!replayer_) finish();
    replayer_ = std::make_unique<TapeReplayer>(operations_, *dependences_, threads);
  }
  replayer_->replay();
}

std::size_t Tape::barriers() const {
  const std::size_t levels = dependences_->levels();
  return levels == 0 ? 0 : levels - 1;
}

std::vector<std::string> Tape::labels() const {
  std::vector<std::string> labels;
  for (const TapeOperation& operation : operations_) labels.emplace_back(operation.label);
  return labels;
}

std::size_t Tape::bytes() const {
  return operations_.capacity() * sizeof(TapeOperation) + functor_bytes_ +
         functors_.capacity() * sizeof(functors_.front()) + dependences_->bytes() +
         (replayer_ ? replayer_->bytes() : 0);
}

}  // namespace encore::backend
