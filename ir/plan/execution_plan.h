// What every rank does in one step, as data: a list of instructions a rank,
// executed strictly in order. Two interpreters carry it out: the emulator in
// simulated time and the runtime in wall time.
//
// A plan is complete: it holds the step's StageGraph (tasks, transfers with
// their shapes, memory limits), so a rank negotiates nothing at run time and
// anyone can check it. Effects of each instruction: docs/plan_format.md.
//
// A tensor that crosses ranks is in one account for each copy of it. An edge's
// payload belongs to the sender from the start of the task that makes it until
// the WaitSend of the edge (without one, to the end of the program), and to the
// receiver from its Recv to its Free; in between the two overlap, as there are
// two copies. Task::alloc holds neither: a stage keeps its inputs, not what it
// hands on. An edge inside a rank carries nothing.
#ifndef PIPELOOM_IR_PLAN_EXECUTION_PLAN_H_
#define PIPELOOM_IR_PLAN_EXECUTION_PLAN_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/fingerprint.h"
#include "ir/ids.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom {

// Runs a task on the compute stream. All its inputs from other ranks must have
// been waited for. Takes what the task keeps and what it sends to other ranks.
struct Compute {
  TaskId task{};
  bool operator==(const Compute&) const = default;
};
// Starts sending the edge's tensor to the rank of its consumer; does not
// block. Its producer must have been computed on this rank.
struct Send {
  EdgeId edge{};
  bool operator==(const Send&) const = default;
};
// Takes a buffer of the edge's payload and starts receiving into it from the
// rank of its producer; does not block.
struct Recv {
  EdgeId edge{};
  bool operator==(const Recv&) const = default;
};
// Blocks until the Recv of the edge has its data.
struct WaitRecv {
  EdgeId edge{};
  bool operator==(const WaitRecv&) const = default;
};
// Blocks until the Send of the edge has left, and gives back its source.
struct WaitSend {
  EdgeId edge{};
  bool operator==(const WaitSend&) const = default;
};
// Gives back the buffer of a received tensor.
struct Free {
  EdgeId edge{};
  bool operator==(const Free&) const = default;
};
// Moves the activations that forward task `task` keeps to host memory, or
// back; asynchronous on the copy stream.
struct Offload {
  TaskId task{};
  Bytes payload{};
  bool operator==(const Offload&) const = default;
};
struct Fetch {
  TaskId task{};
  Bytes payload{};
  bool operator==(const Fetch&) const = default;
};
// Reduces this rank's gradients over the replicas and steps the optimizer:
// RankSpec::epilogue of time.
struct ReduceGradients {
  bool operator==(const ReduceGradients&) const = default;
};
struct OptimizerStep {
  bool operator==(const OptimizerStep&) const = default;
};

using Instruction =
    std::variant<Compute, Send, Recv, WaitRecv, WaitSend, Free, Offload, Fetch,
                 ReduceGradients, OptimizerStep>;
static_assert(std::is_trivially_copyable_v<Instruction>);

// How much of the step's loss a sub-microbatch is. The gradient of the step as
// if it were not split is the sum of those of its sub-microbatches, each one's
// loss added up over its tokens (or instances) and divided by those of the
// step. Tokens are all that the module works on; a trainer that leaves some out
// of the loss counts its own.
struct LossShare {
  ModuleId module{};  // One with a loss of its own.
  MicrobatchId microbatch{};
  int32_t sub_microbatch = 0;  // Within its microbatch and module.
  int64_t tokens = 0;
  int64_t instances = 0;
  bool operator==(const LossShare&) const = default;
};
// What a module does in the step, all replicas together.
struct LossTotal {
  ModuleId module{};
  int64_t tokens = 0;
  int64_t instances = 0;
  bool operator==(const LossTotal&) const = default;
};

struct ExecutionPlan {
  static constexpr int32_t kVersion = 1;

  std::string job{};
  int64_t step = 0;
  int32_t replica = 0;
  std::string schedule{};  // The strategy's name.
  StageGraph graph{};
  IdVector<RankId, std::vector<Instruction>> programs{};
  // What the planner said of it; 0 where it did not.
  Duration predicted_step_time{};
  Duration lower_bound{};
  Flops model_flops{};  // Of the step and replica, without recomputation.
  double peak_flops_per_second = 0;  // Of the replica's GPUs together.
  // By module, microbatch and sub-microbatch; both empty where not known.
  std::vector<LossShare> loss_shares{};
  std::vector<LossTotal> loss_totals{};  // By module.
  bool operator==(const ExecutionPlan&) const = default;
};

// "compute task 3", "wait_recv edge 7". For messages.
std::string DescribeInstruction(const Instruction& instruction);

// Over everything above; a rank refuses a plan whose stored checksum differs.
Fingerprint Checksum(const ExecutionPlan& plan);

// Model FLOPs over what the GPUs could have done in `step_time`; 0 if unknown.
double Mfu(const ExecutionPlan& plan, Duration step_time);

// Checks that the ranks can run the plan to its end, sharing no code with the
// lowering that makes plans:
// - every task is computed once, on its rank, after what it depends on;
// - every edge between ranks with a consumer elsewhere has one Send, one Recv,
//   one WaitRecv before its consumer, and one Free after, and at most one
//   WaitSend; edges inside a rank have none;
// - a rank with an epilogue reduces its gradients and steps its optimizer once,
//   in this order, after everything it computes and sends;
// - what is offloaded is fetched once, before a backward needs it;
// - on each pair of ranks sends and receives stand in the same order, and no
//   set of ranks waits on itself even if every Send blocks until its Recv is
//   reached;
// - memory of tasks, sent and received tensors stays within the limits, and
//   nothing is given back that is not held.
// FailedPrecondition names the first violation, with rank and instruction
// index, and shows the waiting ranks of a deadlock.
absl::Status ValidateExecutionPlan(const ExecutionPlan& plan);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_EXECUTION_PLAN_H_
