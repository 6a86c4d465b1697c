// The limits of trainers, which `pipeloom plan --for` keeps to. A new
// trainer is a row of the table in the source file, and its files in
// adapters/trainer_files.cc.
//
// A trainer's stages are one chain, and a rank's stages are all it holds there:
// layers of several modules that meet on a rank are one stage. Every stage runs
// every microbatch, whole; a stage that has no work in one hands its input on.
#ifndef PIPELOOM_IR_PLAN_TRAINER_H_
#define PIPELOOM_IR_PLAN_TRAINER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ir/job/job_spec.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/partition.h"

namespace pipeloom {

// The orders of passes that a trainer can execute.
enum class PassOrder : uint8_t {
  kAny,
  // All stages go forward through the microbatches in one order; backwards in
  // any order.
  kOneForwardOrder,
  // 1F1B, or Megatron-Core's interleaved schedule; the order of microbatches is
  // free.
  kStock,
};

struct TrainerLimits {
  absl::string_view name{};
  // Whether nothing is limited: Pipeloom's own executors.
  bool everything = false;
  // The most stages of a rank; every rank has as many.
  int32_t most_stages = 1;
  // Whether the stages may go back from the last rank to the first (a V of two
  // stages a rank); else they go round in a loop.
  bool vee = false;
  // Whether all modules before the last one lie in the first stage.
  bool encoders_first = false;
  // Whether weight gradients may run apart from their backward.
  bool split_backward = false;
  PassOrder order = PassOrder::kAny;
  // Whether the trainer keeps one loss: the last stage goes back through a
  // microbatch right behind its forward.
  bool one_loss = false;
  // Whether the trainer has no pipeline on one rank: such a job has one stage,
  // and a backward follows each forward.
  bool plain_on_one_rank = false;
  // Recomputation of whole layers, the same for all microbatches: all layers,
  // and also
  bool recompute_periods = false;   // with a checkpoint every 2 or 4 layers,
  bool recompute_block = false;     // the first K layers of each stage,
  bool recompute_by_stage = false;  // with a K of each stage's own.
  // Whether the user's own code divides the GPUs of ranks, and state; else they
  // are divided as follows.
  bool free_division = false;
  // The most of its state that the trainer divides over the replicas of a
  // pipeline.
  OptimizerSharding most_sharding = OptimizerSharding::kZero3;
  // Whether weights are divided wherever the optimizer's state is: FsdpOf().
  bool divides_weights = false;
  // Whether the state can also be divided over some of the replicas.
  bool optimizer_groups = true;
  // Whether it then divides the replicas of experts into as many groups.
  bool equal_expert_groups = false;
  // Whether the GPUs of a rank may be context or expert parallel; else they are
  // tensor parallel only.
  bool other_parallelism = true;
  // How context-parallel GPUs share attention; absent: in any way.
  std::optional<ContextParallelism> context{};
  // Whether tensor-parallel GPUs share a routed expert only if ep is 1.
  bool whole_experts = false;
  // Whether experts under tensor parallelism need sequence parallelism.
  bool experts_need_sequence_parallel = false;
  // Whether, without sequence parallelism, tensor-parallel GPUs each send a
  // part of a stage's output (TrainingSetup::scattered_sends).
  bool scattered_sends = false;
};

// How FSDP2 divides the state of dp replicas: there are `replicate` copies, and
// `shard` replicas share each.
struct FsdpSetting {
  int32_t replicate = 1;
  int32_t shard = 1;
  // Whether weights are gathered anew for every pass, instead of once a step.
  bool gathers_again = false;
};
// Returns the setting that does what the job says. REQUIRES: CheckTrainerJob
// accepts the job for a trainer that divides weights.
FsdpSetting FsdpOf(const JobSpec& job);

// Returns whether the trainer has no pipeline on so many ranks.
bool IsPlain(const TrainerLimits& trainer, int32_t num_ranks);

// Returns all trainers, `pipeloom` last.
absl::Span<const TrainerLimits> Trainers();
// Returns the trainer of that name, or null.
const TrainerLimits* FindTrainer(absl::string_view name);

// Returns FailedPrecondition that says `what` the trainer cannot execute, and
// what would be right.
absl::Status CannotExecute(const TrainerLimits& trainer,
                           absl::string_view what);

// Returns FailedPrecondition that names what of the job the trainer cannot
// execute, and what would be right: modules that are no chain, several losses,
// frozen modules, modules with a layout of their own, a division of GPUs or
// state that the trainer has no setting for.
absl::Status CheckTrainerJob(const TrainerLimits& trainer, const JobSpec& job);
// Does the same for a partition of such a job.
absl::Status CheckTrainerPartition(const TrainerLimits& trainer,
                                   const JobSpec& job,
                                   const Partition& partition);

// Recomputation as trainers set it at launch. Layers that are neither
// transformer blocks nor fixed work are kept.
struct RecomputeSetting {
  // Number of layers that share a checkpoint; 0: `first` says what is
  // recomputed.
  int32_t period = 0;
  // Number of each stage's first layers that are recomputed. Empty: none.
  IdVector<StageId, int32_t> first{};
  bool operator==(const RecomputeSetting&) const = default;
  bool is_none() const;
};

// Returns whether the layer is one that trainers can recompute.
bool MayRecompute(const LayerSpec& layer);
// Returns the number of such layers of a stage.
int32_t NumRecomputable(const Stage& stage, const ModelSpec& model);
// Returns the choice of every stage.
IdVector<StageId, MemoryChoice> ChoicesOf(const RecomputeSetting& setting,
                                          const Partition& partition,
                                          const ModelSpec& model);

// Returns, indexed by stage, the number of the trainer's stage that it is a
// part of: stages of a segment on one rank are one. REQUIRES:
// CheckTrainerPartition accepts it for some trainer.
IdVector<StageId, int32_t> TrainerStages(const Partition& partition);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_TRAINER_H_
