// A plan as the instruction lists of a DeepSpeed-style pipeline engine: for
// each rank a list of steps, each a list of instructions, in the names of
// deepspeed.runtime.pipe.schedule. Instructions name buffers, not microbatches;
// a buffer holds one microbatch from its forward to its backward.
// examples/deepspeed/plan_engine.py hands such steps to the engine as they are.
//
//   deepspeed ranks 2 microbatches 1
//   rank 0 buffers 1
//     LoadMicroBatch(0) ForwardPass(0) SendActivation(0)
//     RecvGrad(0) BackwardPass(0)
//     ReduceTiedGrads ReduceGrads OptimizerStep
//   rank 1 buffers 1
//     LoadMicroBatch(0) RecvActivation(0) ForwardPass(0)
//     BackwardPass(0) SendGrad(0)
//     ReduceTiedGrads ReduceGrads OptimizerStep
//
// A step is receives, a pass, its sends. The engine's transfers block until
// both ends have come to them; here both ends are listed at the same moment of
// one walk over all ranks, so no set of ranks can wait on itself, which
// ToDeepSpeed checks again by running the lists. The engine keeps one loss, and
// receives outputs and gradients into one tensor, whatever the buffers: the
// last rank goes back through a microbatch right behind its forward, and a
// gradient is received right before its backward.
#ifndef PIPELOOM_ADAPTERS_DEEPSPEED_STEPS_H_
#define PIPELOOM_ADAPTERS_DEEPSPEED_STEPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "adapters/action.h"

namespace pipeloom::adapters {

struct DeepSpeedInstruction {
  std::string name{};
  int32_t buffer = -1;  // -1: none.
  bool operator==(const DeepSpeedInstruction&) const = default;
};
using DeepSpeedStep = std::vector<DeepSpeedInstruction>;

struct DeepSpeedSteps {
  struct Rank {
    int32_t num_buffers = 0;
    std::vector<DeepSpeedStep> steps{};
    bool operator==(const Rank&) const = default;
  };
  int32_t num_microbatches = 0;
  std::vector<Rank> ranks{};
  bool operator==(const DeepSpeedSteps&) const = default;
};

// FailedPrecondition: several stages on a rank, stage s not on rank s, weight
// gradients apart, overlapped pairs, a forward on the last rank without its
// backward right behind it, or blocking transfers that would lock up.
absl::StatusOr<DeepSpeedSteps> ToDeepSpeed(const ActionTable& table);

// Microbatches by the order in which a rank goes forward. FailedPrecondition
// names the rank, step and instruction that the engine cannot run there: on a
// buffer that is in use, or that lacks the input, output or gradient it needs;
// transfers that lock up, or that carry one microbatch's tensor to another.
absl::StatusOr<ActionTable> FromDeepSpeed(const DeepSpeedSteps& steps);

std::string PrintDeepSpeed(const DeepSpeedSteps& steps);
// InvalidArgument names the line, and what it should be.
absl::StatusOr<DeepSpeedSteps> ParseDeepSpeed(absl::string_view text);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_DEEPSPEED_STEPS_H_
