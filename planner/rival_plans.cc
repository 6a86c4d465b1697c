#include "planner/rival_plans.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/memory_choices.h"
#include "planner/strategy.h"

namespace pipeloom::planner {
namespace {

// Others have the same order on a given partition as one of these.
constexpr const char* kRivals[] = {
    "interleaved", "dip-interleave", "1f1b",  "disttrain", "optimus", "zb-h1",
    "zb-v",        "dualpipe-v",     "gpipe", "v-half",    "v-min"};

}  // namespace

absl::StatusOr<std::optional<RivalPlan>> BestRivalPlan(
    const PreparedJob& job, const PlanInput& input,
    const Microbatches& microbatches, Duration to_beat,
    const SearchBudget& budget, int64_t* evaluations) {
  std::optional<RivalPlan> best;
  std::vector<std::unique_ptr<Strategy>> rivals;
  for (const char* name : kRivals) {
    PIPELOOM_ASSIGN_OR_RETURN(auto rival, MakeStrategy(name));
    rivals.push_back(std::move(rival));
  }
  // They are few and cheap: their number is not limited, only their time.
  SearchBudget time = budget;
  time.max_evaluations = std::numeric_limits<int64_t>::max();
  SearchBudget once = budget;
  once.max_evaluations = 1;
  const std::vector<RecomputeChoice> choices =
      MemoryChoices(job.costs->job(), job.partition);
  for (const bool split : {false, true}) {
    for (const RecomputeChoice& choice : choices) {
      if (to_beat > kZero && time.Exhausted(*evaluations)) return best;
      PIPELOOM_ASSIGN_OR_RETURN(
          const partition::BuiltGraph built,
          partition::BuildStageGraph(
              *job.costs, job.partition, microbatches,
              {.split_backward = split, .recompute = choice}));
      for (const std::unique_ptr<Strategy>& rival : rivals) {
        if (rival->split_backward() != split) continue;
        if (to_beat > kZero && time.Exhausted(*evaluations)) return best;
        const absl::StatusOr<SearchResult> timed =
            rival->MakeSchedule(built.graph, job.partition, input.seed, once);
        // An order that is not for this partition costs next to nothing.
        if (!timed.ok()) continue;
        ++*evaluations;
        if (to_beat > kZero && timed->schedule.step_time() >= to_beat) continue;
        PreparedJob with = job;
        with.strategy = rival.get();
        absl::StatusOr<Candidate> candidate =
            PlanChoice(with, input, built, nullptr, choice, built.graph.ranks(),
                       once, evaluations);
        if (!candidate.ok()) {
          if (absl::IsResourceExhausted(candidate.status())) continue;
          return candidate.status();
        }
        const Duration emulated = candidate->predicted.step_time();
        if (to_beat > kZero && emulated >= to_beat) continue;
        to_beat = emulated;
        candidate->plan.schedule = std::string(job.strategy->name());
        best = RivalPlan{.candidate = *std::move(candidate), .built = built};
      }
    }
  }
  return best;
}

}  // namespace pipeloom::planner
