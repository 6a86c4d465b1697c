// The state that a torch trainer shares with its devices: the stages with their
// weights, and the step under way.
#ifndef PIPELOOM_RUNTIME_TORCH_TRAINER_STATE_H_
#define PIPELOOM_RUNTIME_TORCH_TRAINER_STATE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/memory_policy.h"
#include "runtime/torch/adamw.h"
#include "runtime/torch/stage_run.h"
#include "runtime/torch/torch_setup.h"
#include "runtime/torch/torch_work.h"

namespace pipeloom::runtime {

// The tasks of one stage on one sub-microbatch.
struct TaskPair {
  StagePairId id{};
  TaskId forward{};
  TaskId backward{};
  TaskId weight_grad{};
  bool copies_apart = false;  // Whether the plan has Offload and Fetch for it.
};

// The data of a step that all its ranks read.
struct StepPlan {
  ExecutionPlan plan{};  // As ResizePlan returns it.
  TorchWork work{};
  MemoryPolicy memory{};
  std::vector<TaskPair> pairs{};
  IdVector<TaskId, size_t> pair_of{};
  // Each rank writes only its own entries.
  IdVector<TaskId, double> losses{};  // Losses of forwards.
  TorchSpent spent{};

  const TaskPair& PairOf(TaskId task) const { return pairs[pair_of[task]]; }
};

// Fills in `pairs` and `pair_of` from `plan`. FailedPrecondition: a task is
// there twice or before its forward, or `memory` has another number of pairs.
absl::Status FindPairs(StepPlan* step);

struct TrainerState {
  TorchSetup setup{};
  // A core for each rank, if ranks are threads and the process may use exactly
  // as many cores; else empty.
  std::vector<int> cores{};
  IdVector<StageId, TorchStage> stages{};  // Empty for ranks elsewhere.
  IdVector<StageId, AdamW> optimizers{};
  std::unique_ptr<StepPlan> step{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TRAINER_STATE_H_
