#include "planner/trainer/trainer_plan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/execution_plan.h"
#include "partition/batching/batch_split.h"
#include "partition/batching/loss_shares.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/bounds/plan_bound.h"
#include "planner/step/lower_plan.h"
#include "planner/step/plan_choice.h"
#include "planner/trainer/cell_graph.h"
#include "planner/trainer/trainer_orders.h"

namespace pipeloom::planner {
namespace {

// How often an order is searched again with less memory because sent and
// received tensors, which a schedule does not account for, broke a limit.
constexpr int kMaxTightenings = 6;

// A lowered order within the step's limits.
struct Lowered {
  SearchResult found{};
  ExecutionPlan plan{};
};

class StepPlanner {
 public:
  StepPlanner(const TrainerLimits& trainer, const PlanInput& input,
              const StageGraph& graph)
      : trainer_(trainer), input_(input), graph_(graph) {}

  absl::StatusOr<Lowered> Run(const SearchBudget& budget,
                              int64_t* evaluations) {
    limits_ = graph_.ranks();
    SearchBudget once = budget;
    once.max_evaluations = 1;
    std::optional<Lowered> best;
    for (int attempt = 0; !best.has_value(); ++attempt) {
      PIPELOOM_ASSIGN_OR_RETURN(best, Try(once, {}, evaluations));
      if (best.has_value()) break;
      if (attempt == kMaxTightenings) {
        return absl::ResourceExhaustedError(
            "no order leaves room for the tensors that ranks send and "
            "receive");
      }
    }
    limits_ = WithMargin(graph_, limits_);
    SearchBudget rest = budget.PartUntil(1, *evaluations);
    for (int attempt = 0; attempt < kMaxTightenings; ++attempt) {
      if (rest.max_evaluations < 1 || rest.Exhausted(0)) break;
      const int64_t before = *evaluations;
      absl::StatusOr<std::optional<Lowered>> better =
          Try(rest, best->found.schedule.order, evaluations);
      if (absl::IsResourceExhausted(better.status())) break;
      PIPELOOM_RETURN_IF_ERROR(better.status());
      if (better->has_value()) {
        if ((*better)->found.schedule.finish < best->found.schedule.finish) {
          best = **std::move(better);
        }
        break;
      }
      // Repairs take less and less.
      rest.max_evaluations = (*evaluations - before) / 4;
    }
    return *std::move(best);
  }

 private:
  // Searches within limits_. nullopt: tensors under way break a limit, and
  // limits_ are lowered.
  absl::StatusOr<std::optional<Lowered>> Try(const SearchBudget& budget,
                                             const RankOrders& start,
                                             int64_t* evaluations) {
    Lowered lowered;
    PIPELOOM_ASSIGN_OR_RETURN(
        lowered.found, SearchTrainerOrder(graph_.WithRanks(limits_), trainer_,
                                          input_.seed, budget, start));
    *evaluations += lowered.found.evaluations;
    PIPELOOM_ASSIGN_OR_RETURN(lowered.plan,
                              LowerPlan(graph_, lowered.found.schedule));
    const IdVector<RankId, Bytes> peaks = PlanPeaks(lowered.plan);
    bool over = false;
    for (const RankId r : graph_.rank_ids()) {
      const Bytes limit = graph_.rank(r).memory.limit;
      if (limit == Bytes(0) || peaks[r] <= limit) continue;
      Bytes& lower = limits_[r].memory.limit;
      lower = std::max(Bytes(1), lower - (peaks[r] - limit));
      over = true;
    }
    if (over) return std::nullopt;
    return lowered;
  }

  const TrainerLimits& trainer_;
  const PlanInput& input_;
  const StageGraph& graph_;
  IdVector<RankId, RankSpec> limits_{};
};

// Gives microbatches without work in a module with a loss a share of nothing.
// Where that module's layers are in no stage of its own, shares are not known.
void FitLoss(ExecutionPlan* plan) {
  for (const LossTotal& total : plan->loss_totals) {
    std::set<MicrobatchId> missing;
    for (const Task& task : plan->graph.tasks()) {
      if (task.module == total.module) missing.insert(task.microbatch);
    }
    if (missing.empty()) {
      plan->loss_shares.clear();
      plan->loss_totals.clear();
      return;
    }
    for (const LossShare& share : plan->loss_shares) {
      if (share.module == total.module) missing.erase(share.microbatch);
    }
    for (const MicrobatchId m : missing) {
      plan->loss_shares.push_back({.module = total.module, .microbatch = m});
    }
  }
  std::sort(plan->loss_shares.begin(), plan->loss_shares.end(),
            [](const LossShare& a, const LossShare& b) {
              return std::tuple(a.module, a.microbatch, a.sub_microbatch) <
                     std::tuple(b.module, b.microbatch, b.sub_microbatch);
            });
}

}  // namespace

absl::StatusOr<PlanResult> PlanForTrainer(const TrainerLimits& trainer,
                                          const RecomputeSetting& setting,
                                          const PreparedJob& prepared,
                                          const PlanInput& input) {
  PlanResult result;
  PreparedJob job = prepared;
  PIPELOOM_ASSIGN_OR_RETURN(
      result.microbatches,
      partition::SplitMicrobatches(job.costs->job(), *input.packed,
                                   input.replica, job.partition));
  job.costs = &prepared.costs->ForReplica(input.replica);
  const JobSpec& spec = job.costs->job();
  PIPELOOM_RETURN_IF_ERROR(CheckTrainerPartition(trainer, spec, job.partition));
  if (!setting.is_none()) {
    result.memory = PolicyByStage(ChoicesOf(setting, job.partition, spec.model),
                                  job.partition, result.microbatches);
  }
  struct Best {
    Lowered lowered{};
    Flops model_flops{};
  };
  std::optional<Best> best;
  absl::Status shortage;
  const int32_t forms = trainer.split_backward ? 2 : 1;
  for (int32_t form = 0; form < forms; ++form) {
    // The last form gets what is left.
    const SearchBudget budget =
        input.budget.PartUntil((form + 1.0) / forms, result.evaluations);
    PIPELOOM_ASSIGN_OR_RETURN(
        partition::BuiltGraph built,
        partition::BuildStageGraph(*job.costs, job.partition,
                                   result.microbatches,
                                   {.split_backward = form == 1,
                                    .memory = result.memory,
                                    .every_pass = true}));
    PIPELOOM_ASSIGN_OR_RETURN(
        const CellGraph cells,
        MakeCells(built.graph, TrainerStages(job.partition),
                  /*microbatches=*/{}, /*in_order=*/false));
    int64_t evaluations = 0;
    absl::StatusOr<Lowered> lowered =
        StepPlanner(trainer, input, cells.graph).Run(budget, &evaluations);
    result.evaluations += evaluations;
    if (absl::IsResourceExhausted(lowered.status())) {
      shortage = lowered.status();
      continue;
    }
    PIPELOOM_RETURN_IF_ERROR(lowered.status());
    if (best.has_value() &&
        lowered->found.schedule.finish >= best->lowered.found.schedule.finish) {
      continue;
    }
    best = Best{*std::move(lowered), built.model_flops};
  }
  if (!best.has_value()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "step %d, for %s: nothing fits the memory limit of %s a GPU: %s",
        input.step, std::string(trainer.name), FormatBytes(spec.MemoryLimit()),
        std::string(shortage.message())));
  }
  ExecutionPlan& plan = best->lowered.plan;
  const NamedBound bound = PlanBound(plan.graph, nullptr);
  plan.job = spec.name;
  plan.step = input.step;
  plan.replica = input.replica;
  plan.schedule = std::string(job.strategy->name());
  plan.lower_bound = Nanoseconds(bound.time);
  plan.model_flops = best->model_flops;
  plan.peak_flops_per_second = job.costs->PeakFlopsPerSecond();
  PIPELOOM_ASSIGN_OR_RETURN(result.predicted,
                            emulator::EmulateStep(plan, job.costs->Network()));
  plan.predicted_step_time = result.predicted.step_time();
  partition::SetLoss(spec.model, *input.packed, result.microbatches, &plan);
  FitLoss(&plan);
  PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(plan));
  result.plan = std::move(plan);
  result.lower_bound = Nanoseconds(bound.time);
  result.bound_source = bound.source;
  result.proven_optimal = result.predicted.step_time() == result.lower_bound;
  return result;
}

}  // namespace pipeloom::planner
