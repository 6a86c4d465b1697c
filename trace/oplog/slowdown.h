// How much longer the steps of an operation log are than if equal operations
// took equal times, and what makes them so: the what-if analysis of
// "Understanding Stragglers in Large Model Training Using What-if Analysis"
// (OSDI 2025, arXiv 2505.05713).
//
// In the even step each computation takes the mean of its kind in the step, and
// each communication the median of its kind's own times. The slowdown is the
// replayed over the even step's time. That of a kind, a stage or a replica is
// the time of the step in which only its operations take the logged times, over
// the even step's; what it explains is the part of the slowdown that goes away
// if only its operations are even.
#ifndef PIPELOOM_TRACE_OPLOG_SLOWDOWN_H_
#define PIPELOOM_TRACE_OPLOG_SLOWDOWN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "trace/oplog/op_log.h"

namespace pipeloom::trace {

// Means over the steps of a log.
struct Slowdown {
  // The effect of the operations of one kind, stage or replica on the step.
  struct Part {
    double alone = 1;     // Slowdown if only these take the logged times.
    double explains = 0;  // Part of the whole slowdown; may be below 0.
  };
  Duration measured{};  // Time of a step.
  Duration replayed{};
  double mean_error = 0;          // Mean of |replayed / measured - 1|.
  double worst_error = 0;         // The largest of these.
  double error_without_gaps = 0;  // Mean, if workers never pause.
  double whole = 1;
  std::vector<Part> by_kind{};     // Indexed by OpKind; alone is 1 if unused.
  std::vector<Part> by_stage{};    // Indexed by stage.
  std::vector<Part> by_replica{};  // Indexed by replica.
  // The worker that explains most.
  int32_t worst_replica = 0;
  int32_t worst_stage = 0;
  Part worst_worker{};
  // Pearson's correlation of forward and backward times of the same microbatch
  // and worker, relative to the worker's means. It is near 1 if microbatches
  // differ in size.
  double forward_backward_correlation = 0;
  // Time of the step over that of the log, if all stages of a microbatch took
  // their mean; if all microbatches of a stage did; and if both did.
  double even_stages = 1;
  double even_microbatches = 1;
  double even_both = 1;
};

// Analyses all steps. Errors are those of OpReplay; InvalidArgument: the steps
// have different numbers of workers. O(n (kinds + stages + replicas)) and
// O(n x workers) for the worst worker, which is only looked for among the
// workers of the worst stage and replica.
absl::StatusOr<Slowdown> AnalyzeSlowdown(const OpLog& log);

// Returns the cause in a few words: a stage, replica or worker that explains at
// least half of a slowdown of 5 % or more, or microbatches of different sizes
// (a correlation of at least 0.9).
std::string CauseOf(const Slowdown& slowdown);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_OPLOG_SLOWDOWN_H_
