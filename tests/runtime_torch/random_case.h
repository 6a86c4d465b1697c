// Random small models and plans for them: every strategy, every form of the
// backward, every way to save memory, 1 to 4 ranks. The plan's sizes are those
// of the tensors that the torch device has for it, in fp32.
#ifndef PIPELOOM_TESTS_RUNTIME_TORCH_RANDOM_CASE_H_
#define PIPELOOM_TESTS_RUNTIME_TORCH_RANDOM_CASE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/job/job_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/partition.h"
#include "runtime/torch/torch_work.h"

namespace pipeloom::runtime {

struct RandomCase {
  JobSpec job{};
  Partition partition{};
  ExecutionPlan plan{};
  MemoryPolicy memory{};
  TorchWork work{};
  std::string schedule{};
};

// The same seed gives the same case. Of even seeds the planner chooses the
// memory, of odd ones chance does.
absl::StatusOr<RandomCase> MakeRandomCase(uint64_t seed);

// Returns the most bytes that a rank holds according to the plan, without
// weights and optimizer state: activations, tensors between stages, gradients
// of the weights, and the reserve for one layer's backward, at the plan's token
// counts and in fp32. (RankOverhead, which counts towards the plan's limit, has
// that reserve at the job's token count in 16 bit, in addition to the memory
// that GPUs need for themselves.)
Bytes AccountOf(const RandomCase& c, RankId rank);

// Adds 1 for everything that the case has: "rank count 3", "split backward",
// "uniform", "offload", "norms" and so on.
void CountWhatItHas(const RandomCase& c, std::map<std::string, int>* counts);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_TESTS_RUNTIME_TORCH_RANDOM_CASE_H_
