#include "planner/step/improve_step.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/construct/fill_weight_grads.h"
#include "planner/memory/memory_levels.h"
#include "planner/passes/drop_fused.h"
#include "planner/passes/pair_passes.h"
#include "planner/passes/pass_forms.h"
#include "planner/step/carried_step.h"
#include "planner/step/paired_search.h"
#include "planner/step/refine_passes.h"
#include "planner/step/time_shares.h"

namespace pipeloom::planner {
namespace {

// The constants below were chosen on eight to twelve steps of the jobs of
// scripts/measure_jobs.py in 100 ms and 1 s.

// Share of the budget until which starts are taken from other strategies, and
// until which orders of segments are searched for them, with at most so many
// evaluations.
constexpr double kStartsUntil = 0.42;
constexpr double kSegmentsUntil = 0.35;
constexpr int64_t kSegmentEvaluations = 600;
// Tensors that ranks send or receive for which the first start leaves room if
// no earlier step tells.
constexpr int64_t kStartRoom = 4;

// Share of the budget until which the order and the memory choices are searched
// without paired passes (under a deadline, TimeShares says), and shares until
// which the order is searched with them, each time with the pairs of the search
// before.
constexpr double kUnpairedUntil = 0.5;
constexpr double kLastPairedUntil = 0.94;
constexpr double kPairedUntil[] = {0.76, kLastPairedUntil};

// Until when the search without pairs goes on after that with pairs.
constexpr double kSearchAgainUntil = 0.88;

// Where refining takes a larger share of the time than this, only the plan of
// the search is refined, not that of the start too, and the last search with
// pairs takes the time that there is, even if none is left for refining then.
constexpr double kLongRefining = 0.04;

// A step in which forwards run together with backwards is searched further, by
// turns with the best one without, only if it takes at most this share of that.
constexpr double kWorthSearching = 1.06;

bool HasPairs(const Candidate& candidate) {
  return !candidate.made.pairs.empty() || !candidate.made.forward_pairs.empty();
}

// Replaces `best` if `other` is shorter.
void Offer(Candidate other, Candidate* best) {
  if (other.predicted.finish < best->predicted.finish) *best = std::move(other);
}

// Does the same with `other`, unless it does not fit.
absl::Status OfferIfItFits(absl::StatusOr<Candidate> other, Candidate* best) {
  if (absl::IsResourceExhausted(other.status())) return absl::OkStatus();
  PIPELOOM_RETURN_IF_ERROR(other.status());
  Offer(*std::move(other), best);
  return absl::OkStatus();
}

// Improves one step.
class StepImprover {
 public:
  // Keeps references.
  StepImprover(const PreparedJob& job, const PlanInput& input,
               const SearchedStep& step, double lowering, int64_t* evaluations)
      : job_(job),
        input_(input),
        step_(step),
        evaluations_(evaluations),
        as_if_(step.as_if()),
        pairs_forwards_(input.pairs_forwards &&
                        job.costs->job().setup.paired_forwards),
        times_(lowering),
        refinement_(input.budget.Until(times_.RefiningEnd())) {}

  absl::Status Run(std::optional<Candidate> known, Candidate* best) {
    Candidate searched = *best;
    if (!(input_.budget.expired && IsPast(times_.UnpairedEnd()))) {
      PIPELOOM_RETURN_IF_ERROR(
          Search(input_.budget.expired
                     ? input_.budget.PartUntil(times_.UnpairedEnd(), 0)
                     : input_.budget.Until(kUnpairedUntil),
                 &searched));
    }
    PIPELOOM_ASSIGN_OR_RETURN(*best, Refined(searched));
    if (as_if_) refined_ratio_ = RefinedRatio(*best, searched);
    const bool is_other = known.has_value() && !(known->made.found.schedule ==
                                                 searched.made.found.schedule);
    if (is_other && !RefiningIsLong() &&
        !(refinement_.expired && refinement_.expired()) &&
        !IsPast(LatestToRefine())) {
      PIPELOOM_RETURN_IF_ERROR(OfferIfItFits(Refined(*known), best));
    }
    PIPELOOM_RETURN_IF_ERROR(SearchWithPairs(searched, best));
    const double until = LatestToRefine();
    if (IsPast(std::min(kSearchAgainUntil, until - TimeShares::kLeastSearch))) {
      return absl::OkStatus();
    }
    PIPELOOM_RETURN_IF_ERROR(Search(input_.budget.expired
                                        ? input_.budget.PartUntil(until, 0)
                                        : input_.budget,
                                    &searched));
    PIPELOOM_RETURN_IF_ERROR(OfferIfItFits(Refined(searched), best));
    if (!pairs_forwards_) return absl::OkStatus();
    if (best->made.forward_pairs.empty()) {
      PIPELOOM_RETURN_IF_ERROR(PairForwards(*best, best));
    }
    const absl::StatusOr<Candidate> fused = Fused(searched);
    if (absl::IsResourceExhausted(fused.status())) return absl::OkStatus();
    PIPELOOM_RETURN_IF_ERROR(fused.status());
    return PairForwards(*fused, best);
  }

  // Returns CarriedStep::refined_ratio.
  double refined_ratio() const { return refined_ratio_; }

 private:
  bool IsPast(double share) const {
    return input_.budget.spent && input_.budget.spent() >= share;
  }

  bool RefiningIsLong() const { return refining_ > kLongRefining; }

  // Returns the share at which refining should begin to end in time: it took so
  // long the last time.
  double LatestToRefine() const { return times_.LatestToRefine(refining_); }

  // Calls `refine` and notes which share of the time it takes.
  template <typename Refine>
  auto Timed(const Refine& refine) {
    const double begin = input_.budget.spent ? input_.budget.spent() : 0;
    auto refined = refine();
    if (input_.budget.spent) refining_ = input_.budget.spent() - begin;
    return refined;
  }

  // Searches without pairs.
  absl::Status Search(const SearchBudget& budget, Candidate* candidate) {
    PlanInput part = input_;
    part.budget = budget;
    return ImproveCandidate(job_, part, step_.searched_built, step_.searched,
                            candidate, evaluations_);
  }

  // Returns a searched candidate for the step as it is.
  absl::StatusOr<Candidate> Fused(const Candidate& searched) {
    if (!as_if_) return searched;
    return AsFused(job_, input_, step_, searched, input_.budget);
  }

  // Returns a searched candidate with its passes refined.
  absl::StatusOr<Candidate> Refined(const Candidate& searched) {
    if (as_if_) {
      return Timed([&] {
        return RefineSearched(job_, input_, step_, searched, refinement_);
      });
    }
    Candidate refined = searched;
    PIPELOOM_RETURN_IF_ERROR(Refine(&refined));
    return refined;
  }

  absl::Status Refine(Candidate* candidate) {
    return Timed([&] {
      return RefineGradients(job_, input_, step_.built, step_.memory,
                             refinement_, candidate);
    });
  }

  // Offers `to` what forwards run together with backwards make of `from`.
  absl::Status PairForwards(const Candidate& from, Candidate* to) {
    const Candidate before = from;  // May be the same as `to`.
    return RefineForwards(job_, input_, step_.built, step_.memory, before,
                          refinement_, to);
  }

  // Searches with the pairs of the candidate, and makes them anew.
  absl::Status SearchUntil(double until, Candidate* candidate) {
    const bool is_last = RefiningIsLong() && until == kLastPairedUntil;
    if (input_.budget.expired) {
      until = std::min(until, is_last ? times_.PairedEnd() : LatestToRefine());
    }
    if (!HasPairs(*candidate) || input_.budget.Exhausted(*evaluations_) ||
        IsPast(until - times_.LeastPaired())) {
      return absl::OkStatus();
    }
    PIPELOOM_RETURN_IF_ERROR(
        SearchPaired(job_, input_, step_.built, step_.memory,
                     input_.budget.PartUntil(until, *evaluations_), candidate,
                     evaluations_));
    if (is_last && IsPast(LatestToRefine())) return absl::OkStatus();
    return candidate->made.forward_pairs.empty()
               ? Refine(candidate)
               : PairForwards(*candidate, candidate);
  }

  // Searches `best` with its pairs and, by turns, the same step with forwards
  // that run together with backwards.
  absl::Status SearchWithPairs(const Candidate& searched, Candidate* best) {
    std::optional<Candidate> overlapped;
    if (pairs_forwards_) {
      absl::StatusOr<Candidate> fused = Fused(searched);
      if (fused.ok()) {
        overlapped = *std::move(fused);
        PIPELOOM_RETURN_IF_ERROR(PairForwards(*overlapped, &*overlapped));
      } else if (absl::IsResourceExhausted(fused.status())) {
        overlapped = *best;
      } else {
        return fused.status();
      }
      PIPELOOM_RETURN_IF_ERROR(PairForwards(*best, &*overlapped));
      if (ToSeconds(overlapped->predicted.step_time()) >
          kWorthSearching * ToSeconds(best->predicted.step_time())) {
        overlapped.reset();
      }
    }
    double begin =
        input_.budget.expired ? TimeShares::kUnpairedUntil : kUnpairedUntil;
    for (const double until : kPairedUntil) {
      if (overlapped.has_value()) {
        PIPELOOM_RETURN_IF_ERROR(
            SearchUntil((begin + until) / 2, &*overlapped));
      }
      PIPELOOM_RETURN_IF_ERROR(SearchUntil(until, best));
      begin = until;
    }
    if (overlapped.has_value()) Offer(*std::move(overlapped), best);
    return absl::OkStatus();
  }

  const PreparedJob& job_;
  const PlanInput& input_;
  const SearchedStep& step_;
  int64_t* const evaluations_;
  const bool as_if_;
  const bool pairs_forwards_;
  const TimeShares times_;
  const SearchBudget refinement_;
  double refining_ = 0;  // Share of the time that refining took.
  double refined_ratio_ = 0;
};

// Moves the weight gradients of `made`, an answer for the step as it is
// searched that has each right after its backward, to where they make it
// shortest: after the next backward of their rank with a gap for them, or into
// the gaps between tasks. Leaves `made` as it is if nothing is shorter within
// `limits`.
absl::Status PlaceWeightGrads(const SearchedStep& step,
                              const IdVector<RankId, RankSpec>& limits,
                              MemorySchedule* made) {
  const StageGraph limited = step.searched_built.graph.WithRanks(limits);
  MemorySchedule split{.selection = made->selection, .forms = made->forms};
  if (!step.as_if()) {
    split.forms.assign(split.forms.size(), partition::PassForm::kSplit);
  }
  partition::StepMemory memory = step.searched;
  memory.SetForms(split.forms);
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph graph,
      partition::ApplyMemory(limited, memory, made->selection));
  const RankOrders before = made->found.schedule.order;
  const auto offer = [&](RankOrders orders) -> absl::Status {
    PIPELOOM_ASSIGN_OR_RETURN(split.found.schedule,
                              TimeSchedule(graph, std::move(orders)));
    if (split.found.schedule.step_time() < made->found.schedule.step_time()) {
      *made = split;
    }
    return absl::OkStatus();
  };
  if (step.as_if()) {
    PIPELOOM_RETURN_IF_ERROR(
        offer(PutOffWeightGrads(graph, memory, made->selection, before)));
  }
  RankOrders filled = FillWithWeightGrads(graph, before);
  return filled.empty() ? absl::OkStatus() : offer(std::move(filled));
}

}  // namespace

absl::StatusOr<std::optional<Candidate>> KnownStart(
    const StartsFromOthers& others, const PreparedJob& job,
    const PlanInput& input, const SearchedStep& step, bool leaves_room,
    bool* only_whole, int64_t* evaluations) {
  if (input.budget.Abandoned()) return absl::CancelledError("stopped");
  const bool is_fused =
      step.as_if() &&
      std::all_of(step.searched.pairs.begin(), step.searched.pairs.end(),
                  [](const partition::StagePair& pair) {
                    return pair.weight_grad.is_none();
                  });
  partition::BuiltGraph own;
  partition::StepMemory memory = step.searched;
  if (!is_fused) {
    memory =
        step.as_if() ? AsIfPairedAndFused(step.memory) : OnlyFused(step.memory);
    PIPELOOM_ASSIGN_OR_RETURN(own, WithoutFusedWeightGrads(step.built, memory));
    memory.pairs = own.pairs;
  }
  const partition::BuiltGraph& fused = is_fused ? step.searched_built : own;
  // Limits the time to a share, and the evaluations to a small fixed number.
  SearchBudget segments = input.budget.PartUntil(kSegmentsUntil, *evaluations);
  segments.max_evaluations =
      std::min(segments.max_evaluations, kSegmentEvaluations);
  const std::vector<std::shared_ptr<const CarriedStep>> similar =
      SimilarSteps(input.carried, fused.graph);
  IdVector<RankId, RankSpec> limits = fused.graph.ranks();
  if (leaves_room) {
    limits = !similar.empty()
                 ? CarriedLimits(*similar.front(), fused.graph)
                 : WithRoom(fused.graph, std::move(limits), kStartRoom);
  }
  const std::unique_ptr<Strategy> starts = others.Starts(
      segments, LentSteps(similar, fused.graph, memory, input.budget.threads));
  PreparedJob with_starts = job;
  with_starts.strategy = starts.get();
  absl::StatusOr<Candidate> known = PlanChoice(
      with_starts, input, fused, memory, nullptr, std::move(limits),
      input.budget.PartUntil(kStartsUntil, *evaluations), evaluations);
  if (!known.ok()) {
    if (absl::IsResourceExhausted(known.status())) return std::nullopt;
    return known.status();
  }
  if (is_fused) {
    known->made = {
        .selection = std::move(known->made.selection),
        .found = {.schedule = std::move(known->made.found.schedule)}};
    return *std::move(known);
  }
  absl::StatusOr<MemorySchedule> made = InSplitStep(
      step.searched_built, step.searched, fused, memory, known->made);
  if (!made.ok()) return std::nullopt;
  const auto make_to_fit = [&](MemorySchedule answer) {
    return MakeToFit(job, input, step.searched_built, step.searched,
                     std::move(answer), known->limits, input.budget);
  };
  MemorySchedule placed = *made;
  PIPELOOM_RETURN_IF_ERROR(PlaceWeightGrads(step, known->limits, &placed));
  absl::StatusOr<Candidate> fitting = make_to_fit(std::move(placed));
  // Weight gradients right after their backwards need less memory.
  if (absl::IsResourceExhausted(fitting.status())) {
    fitting = make_to_fit(*std::move(made));
  }
  if (absl::IsResourceExhausted(fitting.status())) {
    *only_whole = step.as_if();
    return std::nullopt;
  }
  return fitting;
}

absl::StatusOr<double> ImproveAndRefine(const PreparedJob& job,
                                        const PlanInput& input,
                                        const SearchedStep& step,
                                        std::optional<Candidate> known,
                                        Candidate* best, int64_t* evaluations) {
  StepImprover improver(job, input, step, best->lowering, evaluations);
  PIPELOOM_RETURN_IF_ERROR(improver.Run(std::move(known), best));
  return improver.refined_ratio();
}

}  // namespace pipeloom::planner
