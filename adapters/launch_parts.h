// Parts of the files of several trainers: the schedule as a file, a partition's
// stages as a trainer has them, comments on them.
#ifndef PIPELOOM_ADAPTERS_LAUNCH_PARTS_H_
#define PIPELOOM_ADAPTERS_LAUNCH_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ir/ids.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::adapters {

// A plan's schedule in the form of a trainer's file.
struct TrainerFile {
  std::string extension{};  // Such as "csv".
  std::string text{};
  std::vector<std::string> notes{};  // Duties of the trainer.
  // A launch of several plans has the range of all, and one number for trainers
  // that take the schedule from a file.
  int32_t most_microbatches = 0;
  int32_t fewest_microbatches = 0;
  int32_t group = 0;         // MegatronOrder::group.
  bool rows_differ = false;  // Whether a stage sends unequal tensors.
  // The plan's microbatches in the order in which the trainer takes them; empty
  // if it takes them as they are.
  std::vector<int32_t> feed_order{};
};

// The trainer's stages, each with its parts in data-flow order.
using TrainerStageList = std::vector<std::vector<StageId>>;
// REQUIRES: CheckTrainerPartition accepts the partition for some trainer.
TrainerStageList StageList(const JobSpec& job, const Partition& partition);

// Returns layer `i` of the stage.
const LayerSpec& LayerOf(const JobSpec& job, const Stage& stage, int32_t i);

// Returns the module at the end of the chain. REQUIRES: there is one.
const ModuleSpec& LastModule(const JobSpec& job);

// Lists the stages, in comments.
std::string StageComments(const JobSpec& job, const Partition& partition);

// Returns the rows of a microbatch that is one sequence for the trainer,
// padded to a multiple of `divisor`; 0: it has several, whose length the job
// does not say.
int64_t SequenceLength(const TrainingSpec& training, int64_t divisor);
// Returns a comment where padding makes a sequence longer.
std::string PaddingComment(const TrainingSpec& training, int64_t divisor);

// Returns whether neighbouring GPUs are the ranks of a replica. Trainers have
// the replicas of a rank there, unless they are told otherwise.
bool RanksAreNeighbours(const ParallelLayout& layout);
// Returns a comment for trainers that cannot be told otherwise.
std::string OrderComment(const ParallelLayout& layout);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_LAUNCH_PARTS_H_
