// Actions of other pipeline runtimes: one pass, or one end of a transfer, of a
// stage and a microbatch. The adapters turn plans into tables of actions, with
// a row for each rank, and back.
//
// Here a stage is one link of a chain: stage s gets its input from s - 1 alone.
#ifndef PIPELOOM_ADAPTERS_ACTION_H_
#define PIPELOOM_ADAPTERS_ACTION_H_

#include <cstdint>
#include <vector>

namespace pipeloom::adapters {

enum class ActionKind : uint8_t {
  kForward,
  kBackward,       // Whole: input and weight gradients.
  kBackwardInput,  // The input gradient alone.
  kWeightGrad,
  kSendForward,      // The stage's output.
  kRecvForward,      // The stage's input.
  kSendBackward,     // The stage's input gradient.
  kRecvBackward,     // The stage's output gradient.
  kWaitSendForward,  // Until the buffer of that send is free again.
  kWaitSendBackward,
};
constexpr bool IsTransfer(ActionKind kind) {
  return kind >= ActionKind::kSendForward;
}
constexpr bool IsWait(ActionKind kind) {
  return kind >= ActionKind::kWaitSendForward;
}

struct Action {
  int32_t stage = 0;
  ActionKind kind = ActionKind::kForward;
  int32_t microbatch = 0;
  bool operator==(const Action&) const = default;
};

// One place of a rank's row: nothing (idle), one action, or a forward and a
// backward whose compute and communication overlap, as one operation.
struct Cell {
  std::vector<Action> actions{};
  bool operator==(const Cell&) const = default;
};

struct ActionTable {
  std::vector<std::vector<Cell>> ranks{};
  bool operator==(const ActionTable&) const = default;
};

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_ACTION_H_
