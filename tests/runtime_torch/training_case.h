// The trainings of the truth tests: small models on random batches, with
// another plan every step. They are the same in every process, as nothing
// depends on clocks.
#ifndef PIPELOOM_TESTS_RUNTIME_TORCH_TRAINING_CASE_H_
#define PIPELOOM_TESTS_RUNTIME_TORCH_TRAINING_CASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/job_spec.h"
#include "partition/batching/batch_split.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"
#include "runtime/torch/torch_trainer.h"

namespace pipeloom::runtime {

// kHostCopies: the plan has Offload and Fetch instructions; kMixed: layers go
// to the host, or are computed again, within their tasks.
enum class StepMemory { kKeep, kRecompute, kMixed, kHostCopies };

struct TrainingCase {
  std::string name{};
  std::string schedule{};
  int32_t pp = 2;
  bool video = false;  // Text feeds a diffusion transformer; else images text.
  // Instances per sub-microbatch of the module with media; 0: not cut.
  int64_t sub_instances = 0;
  StepMemory memory = StepMemory::kKeep;
  bool uneven = false;
  std::vector<std::string> frozen{};
  bool text_only = false;  // Every other sample.
};
std::vector<TrainingCase> TrainingCases();
JobSpec JobOf(const TrainingCase& c);

struct TrainingStep {
  ExecutionPlan plan{};  // Before BeginStep.
  TorchWork work{};
  MemoryPolicy memory{};
};

// The steps of one case, one after another.
class CaseRun {
 public:
  static absl::StatusOr<std::unique_ptr<CaseRun>> Make(const TrainingCase& c);
  TorchSetup Setup(TorchPrecision precision) const;
  absl::StatusOr<TrainingStep> Next();

 private:
  CaseRun() = default;
  TrainingCase case_{};
  JobSpec job_{};
  BatchMetadata batch_{};
  std::unique_ptr<emulator::StageCostModel> costs_{};
  std::unique_ptr<planner::Strategy> strategy_{};
  planner::PreparedJob prepared_{};
  int64_t steps_ = 0;
  int64_t first_sample_ = 0;
};

// |a - b| over |b|, in the Euclidean norm.
double Distance(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_TESTS_RUNTIME_TORCH_TRAINING_CASE_H_
