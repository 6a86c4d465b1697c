// Modulo schedules: the same schedule for every microbatch, each begun one
// period after the one before, in which the ranks' tasks never meet and their
// memory, with all microbatches in flight, stays within its limit.
//
// A method of software pipelining of loops (B. R. Rau, "Iterative modulo
// scheduling", MICRO 1994), with memory in place of registers. The V schedules
// of zero-bubble pipelines (Qi et al., 2024, "Pipeline parallelism with
// controllable memory") are modulo schedules of two equal chunks a rank; here
// any number of chunks, placements, unequal stages and unequal passes will do.
// Under tight memory, the shortest period in which a microbatch's memory fits
// decides the step time, not the work of the busiest rank.
//
// Microbatches that differ are taken at their mean.
#ifndef PIPELOOM_PLANNER_CONSTRUCT_MODULO_SCHEDULE_H_
#define PIPELOOM_PLANNER_CONSTRUCT_MODULO_SCHEDULE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// The mean microbatch of a step. A class stands for the same pass of the same
// stage in all microbatches (and sub-microbatch, by index). Times in ns, memory
// in bytes; classes are in a topological order.
struct MeanMicrobatch {
  struct Producer {
    int32_t of = 0;
    int64_t delay = 0;
  };
  struct TaskClass {
    int32_t rank = 0;
    bool weight_grad = false;
    int64_t duration = 0;
    int64_t alloc = 0;
    int64_t free = 0;
    std::vector<Producer> producers{};
  };

  // O(tasks + edges), times the logarithm of the classes.
  explicit MeanMicrobatch(const StageGraph& graph);

  // Returns whether steps can be built from it: false if a dependency connects
  // two microbatches, or if the microbatches' orders of stages contradict each
  // other.
  bool is_valid() const { return !classes.empty(); }

  std::vector<TaskClass> classes{};
  std::vector<int32_t> class_of{};    // Indexed by task.
  std::vector<int32_t> microbatch{};  // Indexed by task: its place by id.
  // Indexed by rank: the limit less static memory, or kNoLimit.
  std::vector<int64_t> capacity{};
};

// Searches modulo schedules by changing the pauses before tasks. Time is cut
// into slots and every duration rounded to whole ones, so that gaps left on a
// rank fit other tasks; what counts is the order, which is timed with the true
// durations. Use one per thread.
class ModuloSearch {
 public:
  // The most slots of a period.
  static constexpr int32_t kMaxSlots = 64;

  // Keeps a reference to `mean`. REQUIRES: mean.is_valid().
  explicit ModuloSearch(const MeanMicrobatch& mean);

  // Returns the length of a slot in ns.
  int64_t slot() const { return slot_; }
  // Returns the slots below which no period can do: the work of the busiest
  // rank, and the bytes of a rank times the least time for which it holds them,
  // over its limit.
  int32_t least_period() const { return least_period_; }
  // Returns the slots that a microbatch takes at least.
  int32_t longest_chain() const { return longest_chain_; }

  // Makes `changes` random changes at a period of `period` slots, from the best
  // so far, and keeps those that are not worse; ends when memory fits. Returns
  // whether it does. Cost: O(classes) a change, some 1.5 us for 100 classes.
  // REQUIRES: period <= kMaxSlots.
  bool Search(int32_t period, int64_t changes, Random& random);

  // Returns the start of each class after its microbatch's begin, in slots, of
  // the last Search that returned true.
  absl::Span<const int32_t> start() const { return best_start_; }

 private:
  struct Link {
    int32_t of = 0;
    int32_t delay = 0;  // In slots.
  };
  struct Score {
    double overflow = 0;  // Bytes over the limits x slots, in a period.
    int32_t latency = 0;  // Slots from a microbatch's begin to its end.
    bool operator<=(const Score& other) const {
      return overflow != other.overflow ? overflow < other.overflow
                                        : latency <= other.latency;
    }
  };

  // Returns the earliest start of a class by its producers' starts in `start`.
  int32_t Earliest(int32_t task_class, absl::Span<const int32_t> start) const;
  // Returns bytes x slots that a rank holds a microbatch's memory at least.
  double LeastArea(int32_t rank) const;
  bool Build(int32_t period, Score* score);
  bool PlaceAll(int32_t period, bool weight_grads);
  double Overflow(int32_t rank, int32_t period) const;

  const MeanMicrobatch* mean_;
  int64_t slot_ = 1;
  int32_t least_period_ = 0;
  int32_t longest_chain_ = 0;
  std::vector<int32_t> slots_;                // Indexed by class.
  std::vector<std::vector<Link>> producers_;  // Indexed by class.
  std::vector<std::vector<int32_t>> of_rank_;
  std::vector<int32_t> pause_;  // Indexed by class, slots.
  std::vector<int32_t> best_pause_;
  std::vector<int32_t> start_;
  std::vector<int32_t> best_start_;
  Score best_{};
  int32_t best_period_ = 0;
  std::vector<uint64_t> busy_;  // Indexed by rank: a bit for each slot.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CONSTRUCT_MODULO_SCHEDULE_H_
