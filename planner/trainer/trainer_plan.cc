#include "planner/trainer/trainer_plan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/cluster/order_epilogues.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/execution_plan.h"
#include "partition/batching/batch_split.h"
#include "partition/batching/loss_shares.h"
#include "partition/batching/shape_buckets.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/bounds/plan_bound.h"
#include "planner/lower/kept_links.h"
#include "planner/lower/lower_plan.h"
#include "planner/step/plan_choice.h"
#include "planner/trainer/cell_graph.h"
#include "planner/trainer/rival_order.h"
#include "planner/trainer/trainer_orders.h"

namespace pipeloom::planner {
namespace {

// How often an order is searched again with less memory because sent and
// received tensors, which a schedule does not account for, broke a limit.
constexpr int kMaxTightenings = 6;

// Share of the budget until which each form of backwards is searched.
constexpr double kFormsUntil = 0.9;

// A lowered order within the step's limits.
struct Lowered {
  SearchResult found{};
  ExecutionPlan plan{};
  StepTrace predicted{};
};

// Plans a step whose backwards have one form.
class FormPlanner {
 public:
  FormPlanner(const TrainerLimits& trainer, const Strategy* rival,
              uint64_t seed, TrainerGraph step, SharedLinks links)
      : trainer_(trainer),
        rival_(rival),
        seed_(seed),
        step_(std::move(step)),
        links_(std::move(links)),
        limits_(graph().ranks()) {}

  // Finds an order that fits.
  absl::Status Begin(const SearchBudget& budget, int64_t* evaluations) {
    SearchBudget once = budget;
    once.max_evaluations = 1;
    for (int attempt = 0;; ++attempt) {
      PIPELOOM_ASSIGN_OR_RETURN(best_, Try(once, {}, evaluations));
      if (best_.has_value()) break;
      if (attempt == kMaxTightenings) {
        return absl::ResourceExhaustedError(
            "no order leaves room for the tensors that ranks send and "
            "receive");
      }
    }
    limits_ = WithMargin(graph(), limits_);
    return absl::OkStatus();
  }

  // Spends the budget on a better one, unless it is a strategy's. REQUIRES:
  // Begin was OK.
  absl::Status Improve(SearchBudget budget, int64_t* evaluations) {
    if (rival_ != nullptr) return absl::OkStatus();
    for (int attempt = 0; attempt < kMaxTightenings; ++attempt) {
      if (budget.max_evaluations < 1 || budget.Exhausted(0)) break;
      const int64_t before = *evaluations;
      absl::StatusOr<std::optional<Lowered>> better =
          Try(budget, best_->found.schedule.order, evaluations);
      if (absl::IsResourceExhausted(better.status())) break;
      PIPELOOM_RETURN_IF_ERROR(better.status());
      if (better->has_value()) {
        if ((*better)->predicted.finish < best_->predicted.finish) {
          best_ = **std::move(better);
        }
        break;
      }
      // Repairs take less and less.
      budget.max_evaluations = (*evaluations - before) / 4;
    }
    return absl::OkStatus();
  }

  Lowered& best() { return *best_; }
  const TrainerGraph& step() const { return step_; }

 private:
  const StageGraph& graph() const { return step_.graph; }

  // Searches within limits_. nullopt: tensors under way break a limit, and
  // limits_ are lowered.
  absl::StatusOr<std::optional<Lowered>> Try(const SearchBudget& budget,
                                             const RankOrders& start,
                                             int64_t* evaluations) {
    Lowered lowered;
    const StageGraph limited = graph().WithRanks(limits_);
    PIPELOOM_ASSIGN_OR_RETURN(
        lowered.found,
        rival_ != nullptr
            ? RivalOrder(limited, trainer_, *rival_, seed_, budget)
            : SearchTrainerOrder(limited, trainer_, seed_, budget, start));
    *evaluations += lowered.found.evaluations;
    PIPELOOM_ASSIGN_OR_RETURN(lowered.plan,
                              LowerPlan(graph(), lowered.found.schedule));
    lowered.plan.links = links_;
    const IdVector<RankId, Bytes> peaks = PlanPeaks(lowered.plan);
    bool over = false;
    for (const RankId r : graph().rank_ids()) {
      const Bytes limit = graph().rank(r).memory.limit;
      if (limit == Bytes(0) || peaks[r] <= limit) continue;
      Bytes& lower = limits_[r].memory.limit;
      lower = std::max(Bytes(1), lower - (peaks[r] - limit));
      over = true;
    }
    if (over) return std::nullopt;
    PIPELOOM_ASSIGN_OR_RETURN(
        lowered.predicted,
        emulator::EmulateInOrder(*step_.update, {}, &lowered.plan));
    return lowered;
  }

  const TrainerLimits& trainer_;
  const Strategy* const rival_;
  const uint64_t seed_;
  const TrainerGraph step_;
  const SharedLinks links_;
  IdVector<RankId, RankSpec> limits_;
  std::optional<Lowered> best_{};
};

// Returns the cells of the step with backwards of each form that the trainer
// has, or of the strategy's.
absl::StatusOr<std::vector<FormPlanner>> MakeForms(
    const TrainerLimits& trainer, const Strategy* rival, const PreparedJob& job,
    const Microbatches& microbatches, const MemoryPolicy& memory, uint64_t seed,
    std::optional<Bytes> limit) {
  std::vector<FormPlanner> forms;
  for (const bool split : {false, true}) {
    if (split && (!trainer.split_backward ||
                  IsPlain(trainer, job.partition.num_ranks))) {
      continue;
    }
    PIPELOOM_ASSIGN_OR_RETURN(TrainerGraph built,
                              MakeTrainerGraph(*job.costs, job.partition,
                                               microbatches, split, memory));
    IdVector<RankId, RankSpec> ranks = built.graph.ranks();
    if (limit.has_value()) {
      for (RankSpec& rank : ranks) rank.memory.limit = *limit;
    }
    built.graph = std::move(built.graph).WithRanks(std::move(ranks));
    forms.emplace_back(trainer, rival, seed, std::move(built),
                       KeptLinks(*job.costs, {}));
  }
  return forms;
}

}  // namespace

absl::StatusOr<TrainerGraph> MakeTrainerGraph(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches, bool split_backward,
    const MemoryPolicy& memory) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph built,
      partition::BuildStageGraph(costs, partition, microbatches,
                                 {.split_backward = split_backward,
                                  .memory = memory,
                                  .every_pass = true}));
  PIPELOOM_ASSIGN_OR_RETURN(CellGraph cells,
                            MakeCells(built.graph, TrainerStages(partition),
                                      /*microbatches=*/{}, CellOrder{}));
  IdVector<StageId, StageId> now;
  for (const int32_t cell : TrainerStages(partition)) {
    now.push_back(StageId(cell));
  }
  return TrainerGraph{.graph = std::move(cells.graph),
                      .model_flops = built.model_flops,
                      .update = std::make_shared<const emulator::StepUpdate>(
                          emulator::OnStages(*built.update, now))};
}

void FitLossToTrainer(ExecutionPlan* plan) {
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

absl::StatusOr<PlanResult> PlanForTrainer(const TrainerLimits& trainer,
                                          const RecomputeSetting& setting,
                                          const PreparedJob& prepared,
                                          const PlanInput& input,
                                          const Strategy* rival,
                                          std::optional<Bytes> limit) {
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
  PIPELOOM_ASSIGN_OR_RETURN(std::vector<FormPlanner> forms,
                            MakeForms(trainer, rival, job, result.microbatches,
                                      result.memory, input.seed, limit));
  absl::Status shortage;
  FormPlanner* best = nullptr;
  for (size_t i = 0; i < forms.size(); ++i) {
    FormPlanner& form = forms[i];
    const absl::Status begun = form.Begin(input.budget, &result.evaluations);
    if (absl::IsResourceExhausted(begun)) {
      shortage = begun;
      continue;
    }
    PIPELOOM_RETURN_IF_ERROR(begun);
    if (forms.size() > 1) {
      const double until = kFormsUntil * static_cast<double>(i + 1) /
                           static_cast<double>(forms.size());
      PIPELOOM_RETURN_IF_ERROR(
          form.Improve(input.budget.PartUntil(until, result.evaluations),
                       &result.evaluations));
    }
    if (best == nullptr ||
        form.best().predicted.finish < best->best().predicted.finish) {
      best = &form;
    }
  }
  if (best == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "step %d, for %s: nothing fits the memory limit of %s a GPU: %s",
        input.step, std::string(trainer.name),
        FormatBytes(limit.value_or(spec.MemoryLimit())),
        std::string(shortage.message())));
  }
  PIPELOOM_RETURN_IF_ERROR(best->Improve(
      input.budget.PartUntil(1, result.evaluations), &result.evaluations));
  ExecutionPlan& plan = best->best().plan;
  const NamedBound bound = PlanBound(
      emulator::WithLeastEpilogues(plan.graph, *best->step().update), nullptr);
  plan.job = spec.name;
  plan.step = input.step;
  plan.replica = input.replica;
  plan.schedule = std::string(job.strategy->name());
  plan.lower_bound = Nanoseconds(bound.time);
  plan.model_flops = best->step().model_flops;
  plan.peak_flops_per_second = job.costs->PeakFlopsPerSecond();
  result.predicted = std::move(best->best().predicted);
  result.update = best->step().update;
  partition::SetLoss(spec.model, *input.packed, result.microbatches, &plan);
  plan.padded_shapes =
      partition::PaddedShapesOf(spec, result.microbatches, plan.graph);
  FitLossToTrainer(&plan);
  PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(plan));
  result.plan = std::move(plan);
  result.lower_bound = Nanoseconds(bound.time);
  result.bound_source = bound.source;
  result.proven_optimal = result.predicted.step_time() == result.lower_bound;
  return result;
}

}  // namespace pipeloom::planner
