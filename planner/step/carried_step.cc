#include "planner/step/carried_step.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;
using partition::PassForm;

// The difference from which a step is no better than a start from nothing.
constexpr double kMostDifference = 0.28;

// How long list schedules that follow the carried order wait for the next task
// in it, in durations of the task that could run instead.
constexpr double kPatience[] = {0, 1, 8};

struct SortedStep {
  // Pairs of each microbatch, sorted by stage and sub-microbatch. Microbatches
  // with the most work in their forwards come first.
  std::vector<std::vector<StagePairId>> microbatches{};
  std::vector<Duration> work{};  // Indexed in the same way.
};

SortedStep SortedPairs(
    const StageGraph& graph,
    const IdVector<StagePairId, partition::StagePair>& pairs) {
  std::vector<std::vector<StagePairId>> microbatches;
  std::vector<Duration> work;
  for (const StagePairId id : pairs.ids()) {
    const Task& forward = graph.task(pairs[id].forward);
    const auto m = static_cast<size_t>(forward.microbatch.value());
    if (m >= microbatches.size()) {
      microbatches.resize(m + 1);
      work.resize(m + 1);
    }
    microbatches[m].push_back(id);
    work[m] += forward.duration;
  }
  std::vector<size_t> order(microbatches.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return work[a] > work[b]; });
  SortedStep sorted;
  for (const size_t m : order) {
    std::vector<StagePairId>& of_one = microbatches[m];
    if (of_one.empty()) continue;
    std::sort(of_one.begin(), of_one.end(), [&](StagePairId a, StagePairId b) {
      const Task& x = graph.task(pairs[a].forward);
      const Task& y = graph.task(pairs[b].forward);
      if (x.stage != y.stage) return x.stage < y.stage;
      return x.sub_microbatch < y.sub_microbatch;
    });
    sorted.microbatches.push_back(std::move(of_one));
    sorted.work.push_back(work[m]);
  }
  return sorted;
}

// Returns how much microbatches, sorted alike, differ in their work: 0 if each
// has as much, towards 1 the less they have in common.
double Difference(const std::vector<Duration>& a,
                  const std::vector<Duration>& b) {
  if (a.empty() || b.empty()) return 1;
  double most = 0;
  double apart = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double x = ToSeconds(a[i * a.size() / b.size()]);
    const double y = ToSeconds(b[i]);
    most += std::max(x, y);
    apart += std::abs(x - y);
  }
  return most > 0 ? apart / most : 0;
}

// Returns the pairs of one stage.
absl::Span<const CarriedStep::Pair> PairsOf(
    const std::vector<CarriedStep::Pair>& pairs, StageId stage) {
  const auto begin = std::lower_bound(
      pairs.begin(), pairs.end(), stage,
      [](const CarriedStep::Pair& p, StageId s) { return p.stage < s; });
  auto end = begin;
  while (end != pairs.end() && end->stage == stage) ++end;
  return {pairs.data() + (begin - pairs.begin()),
          static_cast<size_t>(end - begin)};
}

// Returns the share of its bytes that a pair holds with this candidate.
double HeldRatio(const std::vector<partition::MemoryCandidate>& candidates,
                 size_t candidate) {
  const Bytes all = candidates[0].effect.held();
  if (all <= Bytes(0)) return 1;
  return static_cast<double>(candidates[candidate].effect.held().count()) /
         static_cast<double>(all.count());
}

// Returns the candidate that is the carried choice, or else the one that holds
// the nearest share of its bytes without more copies.
int32_t CandidateLike(const std::vector<partition::MemoryCandidate>& candidates,
                      const MemoryChoice& choice, double held_ratio) {
  int32_t nearest = 0;
  double distance = std::numeric_limits<double>::max();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const partition::MemoryCandidate& candidate = candidates[i];
    if (candidate.choice == choice) return static_cast<int32_t>(i);
    if (candidate.effect.offloaded > Bytes(0)) continue;
    const double away = std::abs(HeldRatio(candidates, i) - held_ratio);
    if (away < distance) {
      distance = away;
      nearest = static_cast<int32_t>(i);
    }
  }
  return nearest;
}

// A step as the carried one suggests it.
struct Suggestion {
  MemorySelection selection{};
  partition::FormSelection forms{};
  std::vector<int32_t> order{};  // All tasks.
};

Suggestion Suggest(const CarriedStep& carried, const StageGraph& graph,
                   const partition::StepMemory& memory) {
  Suggestion suggestion{.selection = memory.KeepEverything(),
                        .forms = memory.forms()};
  std::vector<double> due(static_cast<size_t>(graph.num_tasks()), 0);
  const auto microbatches = SortedPairs(graph, memory.pairs).microbatches;
  const size_t num_old = carried.microbatches.size();
  for (size_t i = 0; i < microbatches.size() && num_old > 0; ++i) {
    const size_t at = i * num_old / microbatches.size();
    const std::vector<CarriedStep::Pair>& like = carried.microbatches[at];
    double first = 1;
    double last = 0;
    for (const CarriedStep::Pair& pair : like) {
      first = std::min(first, pair.forward);
      last = std::max(last, pair.backward);
    }
    const std::vector<StagePairId>& pairs = microbatches[i];
    for (size_t begin = 0; begin < pairs.size();) {
      const StageId stage = memory.pairs[pairs[begin]].stage;
      size_t end = begin;
      while (end < pairs.size() && memory.pairs[pairs[end]].stage == stage) {
        ++end;
      }
      // If the other microbatch lacked the stage, its choices are those of the
      // nearest that had it, and its times are the ends of the microbatch.
      absl::Span<const CarriedStep::Pair> old = PairsOf(like, stage);
      const bool has_times = !old.empty();
      for (size_t away = 1; old.empty() && away < num_old; ++away) {
        if (at + away < num_old) {
          old = PairsOf(carried.microbatches[at + away], stage);
        }
        if (old.empty() && at >= away) {
          old = PairsOf(carried.microbatches[at - away], stage);
        }
      }
      for (size_t k = begin; k < end; ++k) {
        const StagePairId id = pairs[k];
        const partition::StagePair& pair = memory.pairs[id];
        const CarriedStep::Pair* const p =
            old.empty() ? nullptr
                        : &old[(k - begin) * old.size() / (end - begin)];
        due[pair.forward.value()] = has_times ? p->forward : first;
        if (pair.backward.is_none()) continue;
        due[pair.backward.value()] = has_times ? p->backward : last;
        if (!pair.weight_grad.is_none()) {
          due[pair.weight_grad.value()] = has_times ? p->weight_grad : last;
        }
        if (p == nullptr || p->choice < 0) continue;
        suggestion.forms[id] = p->form;
        suggestion.selection[id] = CandidateLike(
            memory.candidates(id),
            carried.choices[static_cast<size_t>(p->choice)], p->held_ratio);
      }
      begin = end;
    }
  }
  suggestion.order.resize(due.size());
  std::iota(suggestion.order.begin(), suggestion.order.end(), 0);
  std::stable_sort(suggestion.order.begin(), suggestion.order.end(),
                   [&](int32_t a, int32_t b) { return due[a] < due[b]; });
  return suggestion;
}

class CarriedStart : public Strategy {
 public:
  CarriedStart(absl::string_view name, const CarriedStep& carried)
      : name_(name), carried_(&carried) {}
  absl::string_view name() const override { return name_; }
  bool split_backward() const override { return true; }
  bool chooses_memory() const override { return true; }
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel&, const BatchMetadata&,
      const std::stop_token&) const override {
    return absl::UnimplementedError(
        "a carried step has no partition of its own");
  }
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph&, const Partition&, uint64_t,
      const SearchBudget&) const override {
    return absl::UnimplementedError("a carried step chooses memory too");
  }
  absl::StatusOr<MemorySchedule> MakeMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition&, uint64_t, const SearchBudget&) const override {
    return ApplyCarried(*carried_, graph, memory);
  }

 private:
  std::string name_;
  const CarriedStep* carried_;
};

}  // namespace

Bytes SizeOf(const CarriedStep& carried) {
  size_t bytes = sizeof(carried) + carried.work.size() * sizeof(Duration) +
                 static_cast<size_t>(carried.room.size()) * sizeof(Bytes);
  for (const std::vector<CarriedStep::Pair>& pairs : carried.microbatches) {
    bytes += sizeof(pairs) + pairs.capacity() * sizeof(CarriedStep::Pair);
  }
  for (const MemoryChoice& choice : carried.choices) {
    bytes += sizeof(choice) + choice.layers.capacity() * sizeof(LayerMemory);
  }
  return Bytes(static_cast<int64_t>(bytes));
}

std::shared_ptr<const CarriedStep> MostSimilar(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps,
    const StageGraph& graph,
    const IdVector<StagePairId, partition::StagePair>& pairs) {
  std::shared_ptr<const CarriedStep> nearest;
  if (steps.empty()) return nearest;
  const std::vector<Duration> work = SortedPairs(graph, pairs).work;
  double least = kMostDifference;
  for (const std::shared_ptr<const CarriedStep>& step : steps) {
    if (step == nullptr) continue;
    const double difference = Difference(step->work, work);
    if (difference >= least) continue;
    least = difference;
    nearest = step;
  }
  return nearest;
}

CarriedStep CarryFrom(const partition::BuiltGraph& built,
                      const partition::StepMemory& memory,
                      const Candidate& planned) {
  partition::StepMemory chosen = memory;
  chosen.SetForms(planned.made.forms);
  const Schedule& schedule = planned.made.found.schedule;
  const double whole = std::max(1.0, ToSeconds(schedule.step_time()) * 1e9);
  const auto share = [&](TaskId t) {
    return static_cast<double>((schedule.start[t] - kStepStart).count()) /
           whole;
  };
  SortedStep sorted = SortedPairs(built.graph, chosen.pairs);
  CarriedStep carried{.work = std::move(sorted.work)};
  for (const std::vector<StagePairId>& pairs : sorted.microbatches) {
    std::vector<CarriedStep::Pair>& to = carried.microbatches.emplace_back();
    to.reserve(pairs.size());
    for (const StagePairId id : pairs) {
      const partition::StagePair& pair = chosen.pairs[id];
      CarriedStep::Pair& p = to.emplace_back();
      p.stage = pair.stage;
      p.forward = share(pair.forward);
      if (pair.backward.is_none()) continue;
      p.backward = p.weight_grad = share(pair.backward);
      p.form = PassForm::kFused;
      if (!pair.weight_grad.is_none()) {
        p.form = chosen.form(id);
        if (p.form == PassForm::kSplit) p.weight_grad = share(pair.weight_grad);
      }
      const auto& candidates = chosen.candidates(id);
      const auto chosen_one = static_cast<size_t>(planned.made.selection[id]);
      const MemoryChoice& choice = candidates[chosen_one].choice;
      p.held_ratio = HeldRatio(candidates, chosen_one);
      const auto known =
          std::find(carried.choices.begin(), carried.choices.end(), choice);
      p.choice = static_cast<int32_t>(known - carried.choices.begin());
      if (known == carried.choices.end()) carried.choices.push_back(choice);
    }
  }
  // No more than this order's tensors took, so that steps do not lower limits
  // further and further.
  carried.room.resize(built.graph.num_ranks());
  const auto peaks = MemoryPeaks(planned.predicted);
  for (const RankId r : built.graph.rank_ids()) {
    carried.room[r] =
        std::clamp(peaks[r].total - schedule.peak[r], Bytes(0),
                   std::max(Bytes(0), built.graph.rank(r).memory.limit -
                                          planned.limits[r].memory.limit));
  }
  return carried;
}

absl::StatusOr<MemorySchedule> ApplyCarried(
    const CarriedStep& carried, const StageGraph& graph,
    const partition::StepMemory& memory) {
  Suggestion suggestion = Suggest(carried, graph, memory);
  partition::StepMemory with_forms = memory;
  with_forms.SetForms(suggestion.forms);
  MemorySchedule made{.selection = std::move(suggestion.selection),
                      .forms = with_forms.forms()};
  absl::Status shortage;
  // The choices of the step before, and, if they do not fit, those that hold
  // least.
  for (const bool least : {false, true}) {
    if (least) made.selection = with_forms.Lean(graph.num_ranks());
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(graph, with_forms, made.selection));
    const FlatGraph flat(chosen);
    ListScheduler scheduler(flat);
    if (!scheduler.CanRun()) {
      shortage = DescribeShortage(chosen, scheduler.shortage());
      continue;
    }
    int64_t best = kNoLimit;
    RankOrders orders;
    for (const double patience : kPatience) {
      const int64_t time = scheduler.Run({.order = suggestion.order,
                                          .prefer = Prefer::kPriority,
                                          .patience = patience,
                                          .give_up = best});
      ++made.found.evaluations;
      if (time >= best) continue;
      best = time;
      orders = OrdersOf(flat, scheduler.sequence());
    }
    PIPELOOM_ASSIGN_OR_RETURN(made.found.schedule,
                              TimeSchedule(chosen, std::move(orders)));
    PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(chosen, made.found.schedule));
    return made;
  }
  return shortage;
}

std::unique_ptr<Strategy> MakeCarriedStart(absl::string_view name,
                                           const CarriedStep& carried) {
  return std::make_unique<CarriedStart>(name, carried);
}

IdVector<RankId, RankSpec> CarriedLimits(const CarriedStep& carried,
                                         const StageGraph& graph) {
  IdVector<RankId, RankSpec> limits = graph.ranks();
  for (const RankId r : limits.ids()) {
    Bytes& limit = limits[r].memory.limit;
    if (limit == Bytes(0) || r.value() >= carried.room.size()) continue;
    limit = std::max(Bytes(1), limit - carried.room[r]);
  }
  return limits;
}

}  // namespace pipeloom::planner
