// The message in which the leader of a run of processes sends a step to the
// others: its plan, sequences and memory choices. Its text form is a list of
// numbers, followed by the bytes of the plan.
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
  std::string plan{};  // Serialized plan; the message does not interpret it.
};

std::string ToString(const TorchMessage& message);
// Parses the text that ToString writes. InvalidArgument: the text is cut off,
// or from another build.
absl::StatusOr<TorchMessage> ParseTorchMessage(absl::string_view text);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_MESSAGE_H_
