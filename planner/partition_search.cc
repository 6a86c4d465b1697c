#include "planner/partition_search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/recipe.h"
#include "planner/executor.h"
#include "planner/plan_step.h"

namespace pipeloom::planner {
namespace {

using partition::ModuleRecipe;
using partition::PartitionBuilder;
using partition::PartitionRecipe;
using partition::RankMap;

// Judged together, so that threads have work and results do not depend on them.
constexpr size_t kRound = 8;
constexpr size_t kFinalists = 4;
constexpr size_t kBeam = 3;
constexpr int64_t kFinalEffort = 4;  // Times the evaluations.
constexpr int32_t kMostSteps = 16;
constexpr int32_t kMostSegments = 8;
// Partitions that make a step of more tasks than this, and than twice those of
// the coarsest, are not tried (but for the rule's): planning would take too
// long every step, and short tasks do not pay.
constexpr int64_t kManyTasks = 8000;
// More than this over the best on the first step: not judged on the others.
constexpr int64_t kLaggingPercent = 2;
constexpr int32_t kMostEffort = 1000;

struct Candidate {
  Partition partition{};
  std::optional<PartitionRecipe> recipe{};  // None: layers were moved.
  std::string name{};
  std::optional<Duration> time{};  // None: it does not fit.
  Duration first_step{};           // Of the first sample step alone.
};

bool Before(const Candidate& a, const Candidate& b) {
  if (!a.time.has_value() || !b.time.has_value()) return a.time.has_value();
  return *a.time < *b.time;
}

int64_t NumTasks(const partition::PackedStep& step, const JobSpec& job,
                 const Partition& partition) {
  const auto microbatches =
      partition::SplitMicrobatches(job, step, /*replica=*/0, partition);
  if (!microbatches.ok()) return 0;
  IdVector<ModuleId, int64_t> stages(job.model.modules.size(), 0);
  for (const Stage& stage : partition.stages) ++stages[stage.module];
  int64_t tasks = 0;
  for (const SubMicrobatch& sub : microbatches->sub_microbatches) {
    tasks += 3 * stages[sub.module];
  }
  return tasks;
}

class PartitionSearch {
 public:
  PartitionSearch(const Strategy& strategy,
                  const emulator::StageCostModel& costs,
                  const PartitionBuilder& builder,
                  const std::vector<partition::PackedStep>& steps,
                  const PartitionSearchOptions& options)
      : strategy_(strategy),
        costs_(costs),
        builder_(builder),
        steps_(steps),
        options_(options),
        effort_(std::clamp(options.effort, 1, kMostEffort)),
        partitions_(std::max<size_t>(
            1, static_cast<size_t>(std::max(options.partitions, 1)) *
                   static_cast<size_t>(effort_))) {}

  absl::StatusOr<PartitionSearchResult> Run() {
    PIPELOOM_ASSIGN_OR_RETURN(const PartitionRecipe rule,
                              builder_.FeasibleRule());
    PartitionRecipe coarsest = rule;
    for (const ModuleId m : coarsest.modules.ids()) {
      coarsest.modules[m].segments = 1;
      if (!builder_.SizeIsFixed(m)) coarsest.modules[m].sub_microbatch = 0;
    }
    const std::optional<Candidate> coarse = Make(coarsest);
    most_tasks_ = kManyTasks;
    if (coarse.has_value()) {
      most_tasks_ = std::max(
          most_tasks_,
          2 * NumTasks(steps_.front(), costs_.job(), coarse->partition));
    }
    PIPELOOM_RETURN_IF_ERROR(Try({Make(rule)}));
    PIPELOOM_RETURN_IF_ERROR(Try(Starts(rule)));
    PIPELOOM_RETURN_IF_ERROR(Descend());
    PIPELOOM_RETURN_IF_ERROR(MoveLayers());
    if (effort_ > 1) PIPELOOM_RETURN_IF_ERROR(Widen());
    return Decide();
  }

 private:
  std::optional<Candidate> Make(const PartitionRecipe& recipe) const {
    absl::StatusOr<Partition> built = builder_.Build(recipe);
    if (!built.ok()) return std::nullopt;
    return Candidate{.partition = *std::move(built),
                     .recipe = recipe,
                     .name = recipe.ToString(costs_.job().model)};
  }

  bool Stopped() const {
    return options_.stop.stop_requested() ||
           (options_.expired && options_.expired());
  }
  bool Over() const { return Stopped() || tried_.size() >= partitions_; }
  bool Known(const Partition& partition) const {
    return std::any_of(tried_.begin(), tried_.end(), [&](const Candidate& c) {
      return c.partition == partition;
    });
  }

  // Judges those that are new, a round at a time, and keeps the best.
  absl::Status Try(const std::vector<std::optional<Candidate>>& candidates) {
    std::vector<Candidate> round;
    const auto judge = [&]() -> absl::Status {
      PIPELOOM_RETURN_IF_ERROR(Race(round.begin(), round.end()));
      for (Candidate& c : round) {
        if (!best_.has_value() || Before(c, tried_[*best_])) {
          best_ = tried_.size();
        }
        tried_.push_back(std::move(c));
      }
      round.clear();
      if (options_.progress) {
        options_.progress(static_cast<int32_t>(tried_.size()),
                          tried_[*best_].time.value_or(kZero));
      }
      return absl::OkStatus();
    };
    for (const std::optional<Candidate>& c : candidates) {
      // The first, DIP's rule, is judged in any case.
      if (!tried_.empty() && Over()) break;
      if (tried_.size() + round.size() >= partitions_) break;
      if (!c.has_value() || Known(c->partition)) continue;
      if (std::any_of(round.begin(), round.end(), [&](const Candidate& r) {
            return r.partition == c->partition;
          })) {
        continue;
      }
      if (!tried_.empty() &&
          NumTasks(steps_.front(), costs_.job(), c->partition) > most_tasks_) {
        continue;
      }
      round.push_back(*c);
      if (round.size() == kRound) PIPELOOM_RETURN_IF_ERROR(judge());
    }
    if (!round.empty()) PIPELOOM_RETURN_IF_ERROR(judge());
    return absl::OkStatus();
  }

  using Range = std::vector<Candidate>::iterator;

  // The mean over all steps only of those that the first step speaks for; the
  // others get what their first step makes likely.
  absl::Status Race(Range begin, Range end) {
    const auto num_steps = static_cast<int32_t>(steps_.size());
    if (num_steps == 1 || !best_.has_value() ||
        !tried_[*best_].time.has_value()) {
      return Judge(options_.evaluations, 0, num_steps, begin, end);
    }
    const Candidate& best = tried_[*best_];
    PIPELOOM_RETURN_IF_ERROR(Judge(options_.evaluations, 0, 1, begin, end));
    const Range lagging = std::stable_partition(begin, end, [&](auto& c) {
      return c.time.has_value() &&
             c.first_step * 100 <= best.first_step * (100 + kLaggingPercent);
    });
    for (Range c = lagging; c != end; ++c) {
      if (!c->time.has_value()) continue;
      c->time =
          std::max(*best.time + Duration(1),
                   Duration(static_cast<int64_t>(
                       ToSeconds(c->first_step) / ToSeconds(best.first_step) *
                       static_cast<double>(best.time->count()))));
    }
    return Judge(options_.evaluations, 1, num_steps, begin, lagging);
  }

  // Mean emulated time of the sample steps, of which those before `first_step`
  // have been judged.
  absl::Status Judge(int64_t evaluations, int32_t first_step, int32_t num_steps,
                     Range begin, Range end) {
    const int32_t each = num_steps - first_step;
    const auto count = static_cast<int32_t>(end - begin) * each;
    std::vector<absl::StatusOr<Duration>> times(
        static_cast<size_t>(count), absl::UnknownError("not planned"));
    ParallelFor(options_.threads, count, [&](int32_t i) {
      const PreparedJob job{.strategy = &strategy_,
                            .costs = &costs_,
                            .partition = begin[i / each].partition};
      PlanInput input;
      input.packed = &steps_[static_cast<size_t>(first_step + i % each)];
      input.seed = options_.seed;
      input.budget.max_evaluations = evaluations;
      input.budget.stop = options_.stop;
      const auto planned = PlanStep(job, input);
      auto& time = times[static_cast<size_t>(i)];
      if (planned.ok()) {
        time = planned->predicted.step_time();
      } else {
        time = planned.status();
      }
    });
    for (auto c = begin; c != end; ++c) {
      Duration sum = first_step > 0 ? c->first_step : kZero;
      bool fits = true;
      for (int32_t s = 0; s < each; ++s) {
        const auto& time = times[static_cast<size_t>((c - begin) * each + s)];
        if (time.ok()) {
          if (first_step + s == 0) c->first_step = *time;
          sum += *time;
          continue;
        }
        if (!absl::IsResourceExhausted(time.status())) return time.status();
        if (no_fit_.ok()) no_fit_ = time.status();
        fits = false;
      }
      c->time = fits ? std::optional(sum / num_steps) : std::nullopt;
    }
    return absl::OkStatus();
  }

  // Modules that are worth choosing for, the largest first.
  std::vector<ModuleId> Heavy() const {
    std::vector<ModuleId> heavy;
    for (const ModuleId m : costs_.job().model.modules.ids()) {
      if (builder_.work(m).present()) heavy.push_back(m);
    }
    std::stable_sort(heavy.begin(), heavy.end(), [&](ModuleId a, ModuleId b) {
      return builder_.TimeOf(a) > builder_.TimeOf(b);
    });
    if (heavy.empty()) return heavy;
    const Duration least = builder_.TimeOf(heavy.front()) / 50;
    std::erase_if(heavy,
                  [&](ModuleId m) { return builder_.TimeOf(m) < least; });
    return heavy;
  }

  std::vector<std::optional<Candidate>> Starts(
      const PartitionRecipe& rule) const {
    std::vector<std::optional<Candidate>> starts;
    const std::vector<ModuleId> heavy = Heavy();
    const int32_t pp = costs_.job().parallel.pp;
    PartitionRecipe level = rule;
    level.level_ranks = true;
    starts.push_back(Make(level));
    // Sizes for all modules that have any, with few segments and more.
    for (const int32_t segments : {1, 2}) {
      for (const int64_t size : {int64_t{4}, int64_t{12}, int64_t{0}}) {
        PartitionRecipe r = level;
        for (const ModuleId m : heavy) {
          r.modules[m].segments =
              std::clamp(segments, 1, MostSegments(m, r.modules[m]));
          if (!builder_.SizeIsFixed(m) && rule.modules[m].sub_microbatch > 0) {
            r.modules[m].sub_microbatch =
                size < builder_.work(m).most_instances ? size : 0;
          }
        }
        starts.push_back(Make(r));
        if (segments == 2 && size == 4) {
          for (const ModuleId m : heavy) r.modules[m].map = RankMap::kVee;
          starts.push_back(Make(r));
        }
      }
    }
    // All modules as one pipeline, once round the ranks and more.
    for (const int32_t segments : {1, 2, 4}) {
      for (const RankMap map : {RankMap::kLooped, RankMap::kVee}) {
        PartitionRecipe r = rule;
        r.one_chain = true;
        r.modules[ModuleId(0)].segments = segments;
        r.modules[ModuleId(0)].map = map;
        for (const ModuleId m : r.modules.ids()) {
          if (!builder_.SizeIsFixed(m)) r.modules[m].sub_microbatch = 0;
        }
        starts.push_back(Make(r));
      }
    }
    if (heavy.size() >= 2 && pp >= 2) OwnRanks(rule, heavy, &starts);
    return starts;
  }

  // The largest module and the rest on ranks of their own, by time.
  void OwnRanks(const PartitionRecipe& rule, const std::vector<ModuleId>& heavy,
                std::vector<std::optional<Candidate>>* starts) const {
    const int32_t pp = costs_.job().parallel.pp;
    Duration total{};
    for (const ModuleId m : heavy) total += builder_.TimeOf(m);
    const double share =
        ToSeconds(builder_.TimeOf(heavy.front())) / ToSeconds(total);
    const auto fair = static_cast<int32_t>(share * pp + 0.5);
    for (const int32_t shift : {0, -1, 1}) {
      const int32_t mine = fair + shift;
      if (mine < 1 || mine >= pp) continue;
      PartitionRecipe r = rule;
      // The others follow the largest, or go before it.
      const bool leads = heavy.front() == ModuleId(0);
      for (const ModuleId m : r.modules.ids()) {
        ModuleRecipe& module = r.modules[m];
        module.segments = 1;
        const bool largest = m == heavy.front();
        module.num_ranks = largest ? mine : pp - mine;
        if (largest) {
          module.first_rank = leads ? 0 : pp - mine;
        } else {
          module.first_rank = leads ? mine : 0;
        }
      }
      starts->push_back(Make(r));
    }
  }

  int32_t MostSegments(ModuleId m, const ModuleRecipe& recipe) const {
    const int32_t ranks =
        recipe.num_ranks > 0 ? recipe.num_ranks : costs_.job().parallel.pp;
    return std::clamp(builder_.NumUnits(m) / ranks, 1, kMostSegments);
  }

  // The recipe with one choice changed, in a fixed order.
  std::vector<std::optional<Candidate>> Neighbours(
      const PartitionRecipe& from) const {
    std::vector<std::optional<Candidate>> result;
    PartitionRecipe r = from;
    r.level_ranks = !r.level_ranks;
    result.push_back(Make(r));
    for (const ModuleId m : Heavy()) {
      const ModuleRecipe& now = from.modules[m];
      const auto with = [&](auto change) {
        PartitionRecipe changed = from;
        change(&changed.modules[m]);
        result.push_back(Make(changed));
      };
      if (!builder_.SizeIsFixed(m)) {
        for (const int64_t size : NearbySizes(m, now.sub_microbatch)) {
          with([&](ModuleRecipe* c) { c->sub_microbatch = size; });
        }
      }
      if (from.one_chain && m != ModuleId(0)) continue;
      for (const int32_t more : {-1, 1, 2}) {
        const int32_t segments = now.segments + more;
        if (segments < 1 || segments > MostSegments(m, now)) continue;
        with([&](ModuleRecipe* c) { c->segments = segments; });
      }
      if (now.segments > 1) {
        with([&](ModuleRecipe* c) {
          c->map = c->map == RankMap::kVee ? RankMap::kLooped : RankMap::kVee;
        });
      }
    }
    return result;
  }

  // Two steps down and up; 0, the whole microbatch, is beyond the largest.
  std::vector<int64_t> NearbySizes(ModuleId m, int64_t now) const {
    std::vector<int64_t> all;
    for (int64_t size = 1; size < builder_.work(m).most_instances;
         size = partition::NextSize(size)) {
      all.push_back(size);
    }
    size_t at = all.size();
    for (size_t i = 0; i < all.size() && now > 0; ++i) {
      if (all[i] >= now) {
        at = i;
        break;
      }
    }
    all.push_back(0);
    std::vector<int64_t> near;
    for (const int32_t shift : {-1, 1, -2, 2}) {
      const int64_t i = static_cast<int64_t>(at) + shift;
      if (i < 0 || i >= static_cast<int64_t>(all.size())) continue;
      near.push_back(all[static_cast<size_t>(i)]);
    }
    return near;
  }

  // Tried partitions that fit, the fastest first.
  std::vector<size_t> ByTime() const {
    std::vector<size_t> order;
    for (size_t i = 0; i < tried_.size(); ++i) {
      if (tried_[i].time.has_value()) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return Before(tried_[a], tried_[b]);
    });
    return order;
  }

  // Changes the best recipes, until no single change of any of the few best
  // brings it among them.
  absl::Status Descend() {
    // A share of the effort is left for moving layers.
    while (!Over() && tried_.size() * 4 < partitions_ * 3) {
      std::optional<size_t> next;
      std::vector<size_t> order = ByTime();
      order.resize(std::min(order.size(), kBeam));
      for (const size_t i : order) {
        if (next.has_value() || !tried_[i].recipe.has_value() ||
            std::find(expanded_.begin(), expanded_.end(), i) !=
                expanded_.end()) {
          continue;
        }
        next = i;
      }
      if (!next.has_value()) break;
      expanded_.push_back(*next);
      PIPELOOM_RETURN_IF_ERROR(Try(Neighbours(*tried_[*next].recipe)));
    }
    return absl::OkStatus();
  }

  absl::Status MoveLayers() {
    while (!Over()) {
      const size_t before = *best_;
      moved_.push_back(before);
      PIPELOOM_RETURN_IF_ERROR(Try(Moved(tried_[before])));
      if (*best_ == before) break;
    }
    return absl::OkStatus();
  }

  std::vector<std::optional<Candidate>> Moved(const Candidate& from) const {
    std::vector<std::optional<Candidate>> moved;
    for (const StageId s : from.partition.stages.ids()) {
      for (const bool back : {false, true}) {
        auto partition = builder_.MoveUnit(from.partition, s, back);
        if (!partition.has_value()) continue;
        moved.push_back(Candidate{.partition = *std::move(partition),
                                  .name = WithMoved(from.name)});
      }
    }
    return moved;
  }

  // Both kinds of change of whatever is the best that had them not yet.
  absl::Status Widen() {
    const auto had = [](const std::vector<size_t>& list, size_t i) {
      return std::find(list.begin(), list.end(), i) != list.end();
    };
    while (!Over()) {
      const size_t before = tried_.size();
      std::optional<size_t> next;
      for (const size_t i : ByTime()) {
        if (had(moved_, i) &&
            (!tried_[i].recipe.has_value() || had(expanded_, i))) {
          continue;
        }
        next = i;
        break;
      }
      if (!next.has_value()) break;
      const Candidate from = tried_[*next];
      if (!had(moved_, *next)) {
        moved_.push_back(*next);
        PIPELOOM_RETURN_IF_ERROR(Try(Moved(from)));
      }
      if (from.recipe.has_value() && !had(expanded_, *next) && !Over()) {
        expanded_.push_back(*next);
        PIPELOOM_RETURN_IF_ERROR(Try(Neighbours(*from.recipe)));
      }
      if (tried_.size() == before && Stopped()) break;
    }
    return absl::OkStatus();
  }

  static std::string WithMoved(const std::string& name) {
    constexpr char kMoved[] = ", layers moved";
    const size_t at = name.find(kMoved);
    return absl::StrCat(name.substr(0, at), kMoved);
  }

  absl::StatusOr<PartitionSearchResult> Decide() {
    std::vector<Candidate> last = {tried_.front()};
    for (const size_t i : ByTime()) {
      if (last.size() > kFinalists + static_cast<size_t>(effort_) / 10) break;
      if (i > 0) last.push_back(tried_[i]);
    }
    if (!Stopped()) {
      PIPELOOM_RETURN_IF_ERROR(Judge(options_.evaluations * kFinalEffort, 0,
                                     static_cast<int32_t>(steps_.size()),
                                     last.begin(), last.end()));
    }
    const auto best = std::min_element(last.begin(), last.end(), Before);
    if (!best->time.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("none of the %d partitions tried fits the memory: %s",
                          tried_.size(), no_fit_.message()));
    }
    return PartitionSearchResult{.partition = best->partition,
                                 .step_time = *best->time,
                                 .rule_time = last.front().time.value_or(kZero),
                                 .tried = static_cast<int32_t>(tried_.size()),
                                 .recipe = best->name};
  }

  const Strategy& strategy_;
  const emulator::StageCostModel& costs_;
  const PartitionBuilder& builder_;
  const std::vector<partition::PackedStep>& steps_;
  const PartitionSearchOptions& options_;
  const int32_t effort_;
  const size_t partitions_;  // To be tried at most.
  int64_t most_tasks_ = 0;
  std::vector<Candidate> tried_{};
  std::optional<size_t> best_{};
  std::vector<size_t> expanded_{};  // Had their recipe's neighbours tried,
  std::vector<size_t> moved_{};     // and their layers moved.
  absl::Status no_fit_{};
};

}  // namespace

absl::StatusOr<std::vector<partition::PackedStep>> SampleSteps(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    int32_t count) {
  JobSpec job = costs.job();
  job.parallel.dp = 1;
  const partition::LayerPricing pricing(job, costs);
  Partition whole;
  whole.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  struct Weighed {
    partition::PackedStep step{};
    Duration work{};
  };
  std::vector<Weighed> all;
  size_t full = 0;  // Microbatches of the first step.
  for (int64_t first = 0; first < sample.samples.size() &&
                          static_cast<int32_t>(all.size()) < kMostSteps;) {
    auto packed = partition::PackStep(job, sample, first);
    if (!packed.ok()) {
      if (!all.empty()) break;  // What is left is no work for the model.
      return absl::InvalidArgumentError(absl::StrFormat(
          "the sample of batches that a partition is chosen by: %s",
          packed.status().message()));
    }
    first += packed->num_samples;
    // A short last step stands for nothing.
    if (!all.empty() && packed->packed[0].size() < full) break;
    full = packed->packed[0].size();
    PIPELOOM_ASSIGN_OR_RETURN(
        const Microbatches microbatches,
        partition::SplitMicrobatches(job, *packed, /*replica=*/0, whole));
    Weighed weighed{.step = *std::move(packed)};
    for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
      weighed.work += pricing.AllPasses(sub.module, sub.shape);
    }
    all.push_back(std::move(weighed));
  }
  if (all.empty()) {
    return absl::InvalidArgumentError(
        "the sample of batches that a partition is chosen by is empty");
  }
  std::stable_sort(
      all.begin(), all.end(),
      [](const Weighed& a, const Weighed& b) { return a.work < b.work; });
  const size_t n = all.size();
  const size_t k = std::min(n, static_cast<size_t>(std::max(count, 1)));
  std::vector<partition::PackedStep> steps;
  // The middles of k equal parts.
  for (size_t i = 0; i < k; ++i) {
    steps.push_back(std::move(all[(2 * i + 1) * n / (2 * k)].step));
  }
  return steps;
}

absl::StatusOr<partition::PackedStep> PackFullStep(
    const JobSpec& job, const BatchMetadata& sample) {
  BatchMetadata repeated = sample;
  for (int doubled = 0;; ++doubled) {
    absl::StatusOr<partition::PackedStep> packed =
        partition::PackStep(job, repeated, 0);
    const auto wanted = static_cast<size_t>(job.training.microbatches);
    // The last replica is the first that is short.
    const bool full = packed.ok() && packed->packed.back().size() >= wanted;
    if (full || doubled == 12 || repeated.samples.size() == 0) return packed;
    const BatchMetadata once = repeated;
    for (const SampleMetadata& s : once.samples) repeated.samples.push_back(s);
  }
}

absl::StatusOr<PartitionSearchResult> SearchPartitionOn(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample,
    const std::vector<partition::PackedStep>& steps,
    const PartitionSearchOptions& options) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const PartitionBuilder builder,
      PartitionBuilder::Create(costs.job(), costs, sample));
  return PartitionSearch(strategy, costs, builder, steps, options).Run();
}

absl::StatusOr<PartitionSearchResult> SearchPartition(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample, const PartitionSearchOptions& options) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<partition::PackedStep> steps,
                            SampleSteps(costs, sample, options.steps));
  return SearchPartitionOn(strategy, costs, sample, steps, options);
}

}  // namespace pipeloom::planner
