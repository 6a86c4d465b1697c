// The plan of one step as data: a list of instructions for each rank, executed
// strictly in order. Two interpreters carry it out: the emulator in simulated
// time and the runtime in wall time.
//
// A plan is complete: it holds the step's StageGraph (tasks, transfers with
// their shapes, memory limits), so a rank negotiates nothing at run time and
// anyone can check it. docs/plan_format.md describes the effects of each
// instruction.
//
// Each copy of a boundary tensor is accounted for. The payload of an edge
// between ranks counts for the sender from the start of the task that makes it
// until the WaitSend of the edge (without one, to the end of the program), and
// for the receiver from its Recv to its Free; in between the two overlap, as
// there are two copies. The payload of an edge inside a rank counts from the
// start of the task that makes it to the start of its consumer. Task::alloc
// holds neither: a stage keeps its inputs, not what it hands on.
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
#include "ir/plan/shared_links.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom {

// Runs a task on the compute stream. All its inputs from other ranks must have
// been waited for. Takes memory for what the task keeps and for the boundary
// tensors that it makes.
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
// Blocks until the Send of the edge has left, and releases its source.
struct WaitSend {
  EdgeId edge{};
  bool operator==(const WaitSend&) const = default;
};
// Releases the buffer of a received tensor.
struct Free {
  EdgeId edge{};
  bool operator==(const Free&) const = default;
};
// Offload moves the activations that forward task `task` keeps to host memory,
// Fetch moves them back; both are asynchronous, on the copy stream.
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
// ReduceGradients reduces this rank's gradients over the replicas,
// OptimizerStep steps the optimizer; together they take RankSpec::epilogue.
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

// The share of a sub-microbatch in the step's loss. The gradient of the unsplit
// step is the sum of those of its sub-microbatches, where the loss of each is
// summed over its tokens (or instances) and divided by the number of those in
// the step. `tokens` counts all that the module works on; a trainer that leaves
// some out of the loss counts its own.
struct LossShare {
  ModuleId module{};  // A module with a loss of its own.
  MicrobatchId microbatch{};
  int32_t sub_microbatch = 0;  // Within its microbatch and module.
  int64_t tokens = 0;
  int64_t instances = 0;
  bool operator==(const LossShare&) const = default;
};
// The work of a module in the step, over all replicas.
struct LossTotal {
  ModuleId module{};
  int64_t tokens = 0;
  int64_t instances = 0;
  bool operator==(const LossTotal&) const = default;
};

// The shape that a sub-microbatch is padded to
// (TrainingSpec::ShapeBuckets).
struct PaddedShape {
  ModuleId module{};
  MicrobatchId microbatch{};
  int32_t sub_microbatch = 0;  // Within its microbatch and module.
  int64_t tokens = 0;          // Without padding.
  // Tokens of each copy of the module with padding; 0: it is larger than all
  // buckets and runs as it is.
  int64_t bucket = 0;
  bool operator==(const PaddedShape&) const = default;
};

// The plan of one step of one replica.
struct ExecutionPlan {
  static constexpr int32_t kVersion = 1;

  std::string job{};
  int64_t step = 0;
  int32_t replica = 0;
  std::string schedule{};  // Name of the strategy.
  StageGraph graph{};
  IdVector<RankId, std::vector<Instruction>> programs{};
  SharedLinks links{};  // The step time is predicted by them.
  // Predictions of the planner; 0 if it made none.
  Duration predicted_step_time{};
  Duration lower_bound{};
  Flops model_flops{};  // For the step and replica, without recomputation.
  double peak_flops_per_second = 0;  // For all GPUs of the replica.
  // Sorted by module, microbatch and sub-microbatch. loss_shares and
  // loss_totals are both empty if not known.
  std::vector<LossShare> loss_shares{};
  std::vector<LossTotal> loss_totals{};  // Sorted by module.
  // One for each sub-microbatch of a module with buckets, in the same order.
  std::vector<PaddedShape> padded_shapes{};
  bool operator==(const ExecutionPlan&) const = default;
};

// Describes an instruction for messages: "compute task 3", "wait_recv edge 7".
std::string DescribeInstruction(const Instruction& instruction);

// The boundary tensors of a task, by bytes.
struct BoundaryBytes {
  Bytes made{};   // For its consumers on any rank: taken at its start.
  Bytes taken{};  // Made on its own rank: given back at its start.
};
// Returns the boundary tensors of a task. O(its edges).
BoundaryBytes BoundaryOf(const StageGraph& graph, TaskId task);

// Returns a checksum of all fields above. A rank refuses a plan whose stored
// checksum differs.
Fingerprint Checksum(const ExecutionPlan& plan);

// Returns the model FLOPs divided by the GPUs' bf16 peak in `step_time`, which
// may be above 1 in fp8; 0 if not known.
double Mfu(const ExecutionPlan& plan, Duration step_time);

// Checks that the tasks are the passes of a step and that the ranks can run
// them to its end. Shares no code with what makes plans:
// - passes, loss shares and predicted times are right (ir/check/check_passes.h,
//   ir/check/check_times.h);
// - every task is computed once, on its rank, after what it depends on;
// - every edge between ranks has one Send, one Recv, one WaitRecv before its
//   consumer, one Free after it, and at most one WaitSend; others have none;
// - a rank with an epilogue reduces its gradients and steps its optimizer once,
//   in this order, after everything it computes and sends;
// - what is offloaded is fetched once, before a backward needs it;
// - on each pair of ranks sends and receives are in the same order, and no set
//   of ranks waits on itself even if every Send blocks until its Recv is
//   reached;
// - memory stays within the limits, and nothing is released that is not held.
//
// Returns FailedPrecondition that names the first violation, with rank and
// instruction index, and shows the waiting ranks of a deadlock.
absl::Status ValidateExecutionPlan(const ExecutionPlan& plan);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_EXECUTION_PLAN_H_
