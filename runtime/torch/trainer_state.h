// What a torch trainer and its devices share: the stages with their weights,
// and the step under way.
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
  bool copies_apart = false;  // The plan says when it goes to the host.
};

// What all ranks of a step read.
struct StepPlan {
  ExecutionPlan plan{};  // Resized.
  TorchWork work{};
  MemoryPolicy memory{};
  std::vector<TaskPair> pairs{};
  IdVector<TaskId, size_t> pair_of{};
  IdVector<TaskId, double> losses{};  // Of forwards; each rank its own.
  TorchSpent spent{};                 // Each rank its own.

  const TaskPair& PairOf(TaskId task) const { return pairs[pair_of[task]]; }
};

// Fills in the pairs of `plan`. FailedPrecondition: a task is there twice, or
// before its forward; or `memory` is of other pairs.
absl::Status FindPairs(StepPlan* step);

struct TrainerState {
  TorchSetup setup{};
  // A core for each rank, where they are threads and as many as the process may
  // use.
  std::vector<int> cores{};
  IdVector<StageId, TorchStage> stages{};  // Of other ranks empty.
  IdVector<StageId, AdamW> optimizers{};
  std::unique_ptr<StepPlan> step{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TRAINER_STATE_H_
