// What the leader of a run of processes tells the others of a step besides its
// plan: the sequences and what is kept of them. As text, lines of numbers.
#ifndef PIPELOOM_RUNTIME_TORCH_TORCH_MESSAGE_H_
#define PIPELOOM_RUNTIME_TORCH_TORCH_MESSAGE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/plan/memory_policy.h"
#include "runtime/torch/torch_work.h"

namespace pipeloom::runtime {

struct TorchMessage {
  TorchWork work{};
  MemoryPolicy memory{};
  std::string plan{};  // Bytes, as they are.
};

std::string ToString(const TorchMessage& message);
// InvalidArgument: cut off, or of another build.
absl::StatusOr<TorchMessage> ParseTorchMessage(absl::string_view text);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_MESSAGE_H_
