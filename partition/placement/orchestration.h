// Numbers of GPUs and layouts for the parts of a multimodal model that have
// GPUs of their own (disaggregated placement): the formulation of DistTrain,
// SIGCOMM 2025, solved exactly in integers.
//
//   encoder unit -> backbone unit (a pipeline of pp stages, dp times) ->
//   generator unit
//
// A sample is a packed sequence, and a microbatch has one. With x, y, z GPUs,
// C(tp) a unit's forward and backward time of a sample on tp GPUs, and DP the
// backbone's replicas:
//
//   backbone stage   T_b = C_b(tp) / pp, or the slowest stage's true share
//                    y = tp * pp * DP
//   encoder          T_e = DP * tp_e * C_e / x     (it serves all replicas)
//   generator        T_g = DP * tp_g * C_g / z
//   minimise  C_b + T_e + T_g + max(T_b, T_e, T_g) * (batch / DP - 1)
//   with      x + y + z <= GPUs, DP divides the batch, and each unit's weights,
//             gradients, share of the optimizer's state and activations in
//             flight fit a GPU.
//
// The paper enumerates tp and DP, relaxes x, y and z to reals, and rounds. Here
// pp, x and z are enumerated as well: for each backbone layout the best split
// of the rest is found in one pass, and layouts whose backbone alone cannot
// beat the best so far are skipped.
#ifndef PIPELOOM_PARTITION_PLACEMENT_ORCHESTRATION_H_
#define PIPELOOM_PARTITION_PLACEMENT_ORCHESTRATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace pipeloom::partition {

// One way to run a unit: a tensor-parallel size, activations kept or not.
struct UnitOption {
  int32_t tp = 1;
  bool recompute = false;
  double seconds = 0;  // C: forward and backward of a sample on tp GPUs.
  // Bytes on one of tp GPUs that hold the whole unit.
  double weight_bytes = 0;      // Weights and gradients.
  double optimizer_bytes = 0;   // Before it is divided over replicas.
  double activation_bytes = 0;  // Per sample.
};

// One unit with the ways to run it.
struct UnitProblem {
  std::string name{};
  std::vector<UnitOption> options{};  // Empty: the model has no such unit.
};

// The three units and the GPUs for them.
struct OrchestrationProblem {
  UnitProblem encoder{};
  UnitProblem backbone{};
  UnitProblem generator{};
  int32_t gpus = 0;
  int64_t batch = 0;        // Samples per step.
  int32_t most_stages = 1;  // Most stages of the backbone: its layers.
  double memory_bytes = 0;  // Memory of a GPU; 0: no limit.
  // Share of the slowest stage in the backbone's time if it is cut into pp
  // stages, indexed by pp - 1. Empty: 1 / pp, with cuts anywhere.
  std::vector<double> slowest_share{};
  double SlowestShare(int32_t pp) const {
    const auto i = static_cast<size_t>(pp - 1);
    return i < slowest_share.size() ? slowest_share[i] : 1.0 / pp;
  }
};

// The GPUs and the layout of one unit.
struct UnitAnswer {
  int32_t gpus = 0;
  int32_t tp = 0;
  int32_t dp = 0;
  int32_t pp = 0;
  bool recompute = false;
  double seconds = 0;  // Per microbatch: T.
};

// The layouts of all units. Times in seconds.
struct OrchestrationAnswer {
  UnitAnswer encoder{};
  UnitAnswer backbone{};
  UnitAnswer generator{};
  double warm_up = 0;
  double steady = 0;
  double seconds() const { return warm_up + steady; }
  int32_t gpus() const { return encoder.gpus + backbone.gpus + generator.gpus; }
};

// Returns the best of all integer answers; of equal ones the first by fewer
// GPUs of the backbone. InvalidArgument: no backbone, no GPUs or no batch.
// ResourceExhausted: nothing fits the memory. Deterministic; 1,296 GPUs and
// 1,920 samples take some ten milliseconds.
absl::StatusOr<OrchestrationAnswer> Orchestrate(
    const OrchestrationProblem& problem);

// Returns one placement for all units, as in Megatron-LM: the same tp and dp,
// an encoder stage before and a generator stage after `stages` backbone stages,
// on as many GPUs as that fills. ResourceExhausted: there are too few GPUs or
// too little memory.
absl::StatusOr<OrchestrationAnswer> MegatronStyle(
    const OrchestrationProblem& problem, int32_t tp, int32_t stages);

// Returns T of an encoder or generator on `gpus` GPUs that serves `replicas`
// backbone pipelines, each with `in_flight` microbatches between its forward
// and its backward; infinite if tp does not divide the GPUs or the memory does
// not suffice.
double UnitSeconds(const UnitOption& option, int32_t gpus, int64_t replicas,
                   int32_t in_flight, double memory_bytes);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_ORCHESTRATION_H_
