#include "planner/layout/layout_search.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/stage/stage_cost.h"
#include "partition/batching/balance_step.h"
#include "partition/batching/typical_work.h"
#include "planner/core/executor.h"
#include "planner/step/sample_steps.h"

namespace pipeloom::planner {
namespace {

// Number of layouts screened together, so that results do not depend on
// threads.
constexpr size_t kRound = 8;
constexpr int32_t kMaxSteps = 2;
constexpr int32_t kScreenPartitions = 4;
constexpr int64_t kScreenEvaluations = 3;

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> low;
  std::vector<int64_t> high;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d != n / d) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

// Limits that the model sets.
struct Shapes {
  int64_t heads = 0;    // Greatest common divisor of all attention heads.
  int64_t experts = 0;  // The same of experts; 0 if there are none.
  int64_t layers = 0;   // Transformer layers.
};

Shapes ShapesOf(const ModelSpec& model) {
  Shapes shapes;
  for (const ModuleSpec& module : model.modules) {
    for (const LayerSpec& layer : module.layers) {
      if (layer.kind != LayerKind::kTransformer) continue;
      ++shapes.layers;
      shapes.heads = std::gcd(shapes.heads, layer.attention.heads);
      shapes.heads = std::gcd(shapes.heads, layer.cross_attention.heads);
      shapes.heads = std::gcd(shapes.heads, layer.delta_net.key_heads);
      if (layer.state_space.heads > 0) {
        shapes.heads = std::gcd(shapes.heads, layer.state_space.groups);
      }
      shapes.experts = std::gcd(shapes.experts, layer.ffn.experts);
    }
  }
  return shapes;
}

std::string Words(const LayoutConstraints& fixed, int64_t gpus) {
  std::string words = absl::StrFormat("%d GPUs", gpus);
  const std::pair<const char*, int32_t> given[] = {{"tp", fixed.tp},
                                                   {"cp", fixed.cp},
                                                   {"ep", fixed.ep},
                                                   {"pp", fixed.pp},
                                                   {"dp", fixed.dp}};
  for (const auto& [name, value] : given) {
    if (value > 0) absl::StrAppendFormat(&words, ", %s %d", name, value);
  }
  return words;
}

// Returns the job's own sizes for modules, as far as they divide the layout's.
std::vector<ModuleParallelism> FittingModules(const JobSpec& job) {
  std::vector<ModuleParallelism> fitting;
  for (ModuleParallelism own : job.module_parallelism) {
    if (own.tp > 0) own.tp = std::gcd(own.tp, job.parallel.tp);
    if (own.cp > 0) own.cp = std::gcd(own.cp, job.parallel.cp);
    if (own.tp % job.parallel.tp == 0 && own.cp % job.parallel.cp == 0) {
      continue;
    }
    fitting.push_back(std::move(own));
  }
  return fitting;
}

// Returns all choices of sizes for modules except the largest; the first is
// without any.
std::vector<std::vector<ModuleParallelism>> ModuleChoices(
    const ModelSpec& model, const ParallelLayout& layout) {
  std::vector<std::vector<ModuleParallelism>> choices = {{}};
  const auto& modules = model.modules;
  const auto largest = std::max_element(modules.begin(), modules.end(),
                                        [](const auto& a, const auto& b) {
                                          return Parameters(a) < Parameters(b);
                                        });
  for (auto module = modules.begin(); module != modules.end(); ++module) {
    if (module == largest) continue;
    const size_t before = choices.size();
    for (const int64_t divisor : Divisors(layout.tp)) {
      for (const int32_t cp : {layout.cp, 1}) {
        const auto tp = static_cast<int32_t>(layout.tp / divisor);
        if (tp == layout.tp && cp == layout.cp) continue;
        for (size_t i = 0; i < before; ++i) {
          choices.push_back(choices[i]);
          choices.back().push_back(
              {.module = module->name, .tp = tp, .cp = cp});
        }
        if (layout.cp == 1) break;
      }
    }
  }
  return choices;
}

bool Free(int32_t fixed, int64_t value) { return fixed == 0 || fixed == value; }

// A layout on its way through the search.
struct Entrant {
  JobSpec job{};
  std::unique_ptr<emulator::StageCostModel> costs{};
  std::vector<WeighedStep> steps{};  // Steps of the costliest replica.
  LayoutOutcome outcome{};
  Duration estimate{};
  absl::StatusOr<PartitionSearchResult> found =
      absl::UnknownError("not searched");
};

// Returns the replica with the most work of each of up to `count` global steps,
// as a step of its own.
absl::StatusOr<std::vector<WeighedStep>> CostliestReplicas(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    int32_t count, Duration* work_of_first) {
  const JobSpec& job = costs.job();
  const partition::LayerPricing pricing(job, costs);
  std::optional<partition::SampleCosts> sample_costs;
  if (job.training.assignment == SampleAssignment::kBalanced) {
    PIPELOOM_ASSIGN_OR_RETURN(
        sample_costs, partition::SampleCosts::Create(job, costs, sample));
  }
  Partition whole;
  whole.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  std::vector<WeighedStep> steps;
  int64_t first = 0;
  for (int32_t s = 0; s < count; ++s) {
    if (s > 0 && first >= sample.samples.size()) break;
    partition::PackedStep step;
    if (s == 0) {
      PIPELOOM_ASSIGN_OR_RETURN(step, PackFullStep(job, sample));
    } else {
      auto packed = partition::PackStep(job, sample, first);
      // A short last step is not representative.
      if (!packed.ok() || packed->packed.back().size() <
                              static_cast<size_t>(job.training.microbatches)) {
        break;
      }
      step = *std::move(packed);
    }
    first += step.num_samples;
    if (sample_costs.has_value()) {
      step = partition::BalanceStep(job, *sample_costs, step);
    }
    size_t costliest = 0;
    Duration most{};
    for (size_t r = 0; r < step.packed.size(); ++r) {
      PIPELOOM_ASSIGN_OR_RETURN(
          const Microbatches microbatches,
          partition::SplitUnpadded(job, step, static_cast<int32_t>(r), whole));
      Duration work{};
      for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
        work += pricing.LeastLoad(sub.module, sub.shape);
      }
      if (work > most) {
        most = work;
        costliest = r;
      }
    }
    if (s == 0) *work_of_first = most;
    auto own = std::move(step.packed[costliest]);
    step.packed.clear();
    step.packed.push_back(std::move(own));
    steps.push_back({.step = std::move(step), .work = most});
  }
  return steps;
}

// Returns whether weights, gradients and optimizer would fit if spread evenly
// over ranks.
bool WeightsFit(const emulator::StageCostModel& costs) {
  const JobSpec& job = costs.job();
  double sum = 0;
  for (const ModuleId m : job.model.modules.ids()) {
    const emulator::StageMemory memory =
        costs.Memory({.module = m,
                      .first_layer = LayerId(0),
                      .num_layers = job.model.modules[m].layers.size(),
                      .rank = RankId(0),
                      .segment = SegmentId(0)});
    sum += static_cast<double>(
        (memory.weights + memory.gradients + memory.optimizer).count());
  }
  return sum / job.parallel.pp <=
         static_cast<double>(job.MemoryLimit().count());
}

class LayoutSearch {
 public:
  LayoutSearch(const Strategy& strategy, const BatchMetadata& sample,
               const PriceLayout& price, const LayoutSearchOptions& options)
      : strategy_(strategy),
        sample_(sample),
        price_(price),
        options_(options) {}

  absl::StatusOr<LayoutSearchResult> Run(const JobSpec& job) {
    PIPELOOM_ASSIGN_OR_RETURN(std::vector<JobSpec> legal,
                              LegalLayouts(job, options_.fixed));
    has_own_ = legal.front().parallel == job.parallel &&
               legal.front().module_parallelism == job.module_parallelism;
    entrants_.resize(legal.size());
    for (size_t i = 0; i < legal.size(); ++i) {
      entrants_[i].job = std::move(legal[i]);
    }
    PIPELOOM_RETURN_IF_ERROR(Price());
    PIPELOOM_RETURN_IF_ERROR(Screen());
    return Refine();
  }

 private:
  bool Stopped() const { return options_.search.stop.stop_requested(); }

  absl::Status Price() {
    std::vector<absl::Status> statuses(entrants_.size());
    ParallelFor(options_.search.threads, static_cast<int32_t>(entrants_.size()),
                [&](int32_t i) {
                  statuses[static_cast<size_t>(i)] =
                      PriceOne(&entrants_[static_cast<size_t>(i)]);
                });
    for (const absl::Status& status : statuses) {
      PIPELOOM_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  absl::Status PriceOne(Entrant* e) const {
    e->outcome.layout = e->job.parallel;
    e->outcome.modules = e->job.module_parallelism;
    e->outcome.microbatches = e->job.training.microbatches;
    e->costs = std::make_unique<emulator::StageCostModel>(
        e->job, price_ ? price_(e->job) : nullptr);
    if (!WeightsFit(*e->costs)) {
      e->outcome.fate = LayoutFate::kNoMemory;
      e->costs.reset();
      return absl::OkStatus();
    }
    Duration work{};
    PIPELOOM_ASSIGN_OR_RETURN(
        e->steps,
        CostliestReplicas(*e->costs, sample_,
                          std::min(options_.search.steps, kMaxSteps), &work));
    const int32_t pp = e->job.parallel.pp;
    const int32_t microbatches = e->job.training.microbatches;
    e->outcome.bound = work / pp;
    e->estimate = e->outcome.bound * (microbatches + pp - 1) / microbatches;
    return absl::OkStatus();
  }

  // Returns the indices of entrants with that fate, sorted by a key.
  template <typename Key>
  std::vector<size_t> Ordered(LayoutFate fate, Key key) const {
    std::vector<size_t> order;
    for (size_t i = 0; i < entrants_.size(); ++i) {
      if (entrants_[i].outcome.fate == fate) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return key(entrants_[a]) < key(entrants_[b]);
    });
    return order;
  }

  absl::Status Screen() {
    std::vector<size_t> order = Ordered(
        LayoutFate::kNotTried, [](const Entrant& e) { return e.estimate; });
    const size_t most =
        static_cast<size_t>(std::max(options_.most_screened, 1));
    if (has_own_ && entrants_[0].outcome.fate == LayoutFate::kNotTried) {
      // The job's own layout is judged in any case, and first.
      order.erase(std::find(order.begin(), order.end(), size_t{0}));
      order.insert(order.begin(), size_t{0});
    }
    if (order.size() > most) order.resize(most);
    std::vector<size_t> round;
    int32_t done = 0;
    const auto judge = [&]() -> absl::Status {
      ParallelFor(
          options_.search.threads, static_cast<int32_t>(round.size()),
          [&](int32_t i) {
            Entrant& e = entrants_[round[static_cast<size_t>(i)]];
            PartitionSearchOptions few = options_.search;
            few.partitions = std::min(few.partitions, kScreenPartitions);
            few.evaluations = std::min(few.evaluations, kScreenEvaluations);
            few.threads = 1;
            few.needs_answer = false;
            few.progress = {};
            const JudgedSteps first = {.steps = {e.steps.front()}};
            e.found =
                SearchPartitionOn(strategy_, *e.costs, sample_, first, few);
          });
      for (const size_t i : round) {
        PIPELOOM_RETURN_IF_ERROR(Settle(LayoutFate::kScreened, &entrants_[i]));
        const Duration time = entrants_[i].outcome.step_time;
        if (time > kZero && (best_ == kZero || time < best_)) best_ = time;
      }
      round.clear();
      return absl::OkStatus();
    };
    for (const size_t i : order) {
      if (Stopped()) break;
      ++done;
      Entrant& e = entrants_[i];
      if (best_ > kZero && e.outcome.bound >= best_) {
        e.outcome.fate = LayoutFate::kBound;
        continue;
      }
      round.push_back(i);
      if (round.size() < kRound) continue;
      PIPELOOM_RETURN_IF_ERROR(judge());
      Report(done, static_cast<int32_t>(order.size()));
    }
    if (!round.empty() && !Stopped()) PIPELOOM_RETURN_IF_ERROR(judge());
    if (Stopped() && best_ == kZero) return absl::CancelledError("stopped");
    Report(static_cast<int32_t>(order.size()),
           static_cast<int32_t>(order.size()));
    return absl::OkStatus();
  }

  absl::StatusOr<LayoutSearchResult> Refine() {
    std::vector<size_t> finalists =
        Ordered(LayoutFate::kScreened,
                [](const Entrant& e) { return e.outcome.step_time; });
    if (finalists.empty()) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "none of the %d layouts fits the memory%s", entrants_.size(),
          no_fit_.ok() ? ": weights, gradients and optimizer are too much even "
                         "if spread evenly over the ranks"
                       : absl::StrCat(": ", std::string(no_fit_.message()))));
    }
    const bool own_fits =
        has_own_ && entrants_[0].outcome.fate == LayoutFate::kScreened;
    if (options_.finalists == 0) {
      return Answer(finalists.front(),
                    own_fits ? entrants_[0].outcome.step_time : kZero);
    }
    const auto most = static_cast<size_t>(std::max(options_.finalists, 1));
    if (finalists.size() > most) finalists.resize(most);
    if (own_fits && std::find(finalists.begin(), finalists.end(), size_t{0}) ==
                        finalists.end()) {
      finalists.push_back(0);
    }
    best_ = kZero;
    std::optional<size_t> best;
    int32_t done = 0;
    const int32_t each = std::max(options_.search.partitions, 1) *
                         std::max(options_.search.effort, 1);
    const int32_t all = static_cast<int32_t>(finalists.size()) * each;
    for (const size_t i : finalists) {
      if (Stopped()) break;
      Entrant& e = entrants_[i];
      PartitionSearchOptions full = options_.search;
      full.needs_answer = false;
      full.progress = [&](int32_t tried, Duration time) {
        if (best_ > kZero) time = std::min(time, best_);
        if (options_.progress) options_.progress(done + tried, all, time);
      };
      auto found = SearchPartitionOn(strategy_, *e.costs, sample_,
                                     JudgedSteps{.steps = e.steps}, full);
      // If it was cut short before it came as far as the screening, the
      // screening's result counts.
      if (Stopped() && (!found.ok() || found->tried <= kScreenPartitions)) {
        break;
      }
      e.found = std::move(found);
      PIPELOOM_RETURN_IF_ERROR(Settle(LayoutFate::kSearched, &e));
      const Duration time = e.outcome.step_time;
      if (time > kZero && (!best.has_value() || time < best_)) {
        best_ = time;
        best = i;
      }
      done += each;
      Report(done, all);
    }
    if (!best.has_value() && Stopped()) best = finalists.front();
    if (!best.has_value()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "no layout fits all sample steps: ", std::string(no_fit_.message())));
    }
    return Answer(*best,
                  own_fits && entrants_[0].outcome.fate == LayoutFate::kSearched
                      ? entrants_[0].outcome.step_time
                      : kZero);
  }

  LayoutSearchResult Answer(size_t best, Duration own_time) const {
    LayoutSearchResult result{.job = entrants_[best].job,
                              .found = *entrants_[best].found,
                              .own_time = own_time};
    const auto key = [](const Entrant& e) { return e.outcome.step_time; };
    const auto bound = [](const Entrant& e) { return e.outcome.bound; };
    for (const size_t i : Ordered(LayoutFate::kSearched, key)) {
      result.layouts.push_back(entrants_[i].outcome);
    }
    for (const size_t i : Ordered(LayoutFate::kScreened, key)) {
      result.layouts.push_back(entrants_[i].outcome);
    }
    for (const LayoutFate fate :
         {LayoutFate::kBound, LayoutFate::kNotTried, LayoutFate::kNoMemory}) {
      for (const size_t i : Ordered(fate, bound)) {
        result.layouts.push_back(entrants_[i].outcome);
      }
    }
    return result;
  }

  // Copies the entrant's search result into its outcome.
  absl::Status Settle(LayoutFate fate, Entrant* e) {
    if (e->found.ok() && e->found->misfits > 0) {
      e->found = absl::ResourceExhaustedError(absl::StrFormat(
          "%d of %d sample steps fit by no partition that was tried: %s",
          e->found->misfits, e->found->judged, e->found->misfit));
    }
    if (e->found.ok()) {
      e->outcome.fate = fate;
      e->outcome.step_time = e->found->step_time;
      return absl::OkStatus();
    }
    e->outcome.step_time = kZero;
    if (Stopped() && absl::IsCancelled(e->found.status())) {
      return absl::OkStatus();
    }
    e->outcome.fate = LayoutFate::kNoMemory;
    if (absl::IsResourceExhausted(e->found.status())) {
      if (no_fit_.ok()) no_fit_ = e->found.status();
      return absl::OkStatus();
    }
    // The job may have a rule that no cut over this many ranks keeps.
    if (absl::IsInvalidArgument(e->found.status()) && entrants_.size() > 1) {
      if (no_fit_.ok()) no_fit_ = e->found.status();
      return absl::OkStatus();
    }
    return e->found.status();
  }

  void Report(int32_t done, int32_t all) const {
    if (options_.progress) options_.progress(done, all, best_);
  }

  const Strategy& strategy_;
  const BatchMetadata& sample_;
  const PriceLayout& price_;
  const LayoutSearchOptions& options_;
  bool has_own_ = false;
  std::vector<Entrant> entrants_{};
  Duration best_{};
  absl::Status no_fit_{};
};

}  // namespace

absl::StatusOr<std::vector<JobSpec>> LegalLayouts(
    const JobSpec& job, const LayoutConstraints& fixed) {
  const int64_t gpus = fixed.gpus > 0 ? fixed.gpus : job.parallel.num_gpus();
  if (gpus > job.cluster.num_gpus()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "layouts of %d GPUs are asked for; cluster \"%s\" has %d", gpus,
        job.cluster.name, job.cluster.num_gpus()));
  }
  const Shapes shapes = ShapesOf(job.model);
  const int64_t node = job.cluster.gpus_per_node;
  const int64_t microbatches =
      int64_t{job.parallel.dp} * job.training.microbatches;
  const bool trades_heads =
      job.parallel.context == ContextParallelism::kAllToAll;
  std::vector<JobSpec> legal;
  const auto add = [&](int64_t tp, int64_t cp, int64_t pp, int64_t ep) {
    const int64_t dp = gpus / (tp * cp * pp);
    JobSpec own = job;
    own.parallel.tp = static_cast<int32_t>(tp);
    own.parallel.cp = static_cast<int32_t>(cp);
    own.parallel.pp = static_cast<int32_t>(pp);
    own.parallel.dp = static_cast<int32_t>(dp);
    own.parallel.ep = static_cast<int32_t>(ep);
    // Experts that tensor parallelism divides follow it.
    if (own.parallel.expert_tp > 1) own.parallel.expert_tp = 0;
    own.training.microbatches = static_cast<int32_t>(microbatches / dp);
    own.module_parallelism = FittingModules(own);
    std::vector<std::vector<ModuleParallelism>> choices = {
        own.module_parallelism};
    if (fixed.by_module) choices = ModuleChoices(job.model, own.parallel);
    for (std::vector<ModuleParallelism>& choice : choices) {
      own.module_parallelism = std::move(choice);
      const bool is_first = own.parallel == job.parallel &&
                            own.module_parallelism == FittingModules(job);
      if (!is_first && ValidateJobSpec(own).ok()) legal.push_back(own);
    }
  };
  const ParallelLayout& now = job.parallel;
  if (now.num_gpus() == gpus && Free(fixed.tp, now.tp) &&
      Free(fixed.cp, now.cp) && Free(fixed.ep, now.ep) &&
      Free(fixed.pp, now.pp) && Free(fixed.dp, now.dp)) {
    legal.push_back(job);
  }
  for (const int64_t tp : Divisors(gpus)) {
    if (!Free(fixed.tp, tp) || node % tp != 0 || shapes.heads % tp != 0) {
      continue;
    }
    for (const int64_t cp : Divisors(gpus / tp)) {
      if (!Free(fixed.cp, cp)) continue;
      const int64_t rank = tp * cp;
      if (node % rank != 0 && (fixed.cp == 0 || rank % node != 0)) continue;
      if (trades_heads && shapes.heads % rank != 0) continue;
      for (const int64_t pp : Divisors(gpus / rank)) {
        const int64_t dp = gpus / (rank * pp);
        if (!Free(fixed.pp, pp) || !Free(fixed.dp, dp)) continue;
        if (pp > std::max<int64_t>(shapes.layers, 1)) continue;
        if (microbatches % dp != 0) continue;
        for (const int64_t ep : Divisors(
                 std::gcd(std::max<int64_t>(shapes.experts, 1), dp * cp))) {
          if (Free(fixed.ep, ep)) add(tp, cp, pp, ep);
        }
      }
    }
  }
  if (!legal.empty()) return legal;
  return absl::InvalidArgumentError(absl::StrFormat(
      "no layout of %s: tp divides the %d GPUs of a node and the heads (%d is "
      "the most that divides all), pp is at most %d layers, dp divides the %d "
      "microbatches of a step, ep divides dp x cp and the experts (%d)",
      Words(fixed, gpus), node, shapes.heads, shapes.layers, microbatches,
      std::max<int64_t>(shapes.experts, 1)));
}

absl::StatusOr<LayoutSearchResult> SearchLayout(
    const Strategy& strategy, const JobSpec& job, const BatchMetadata& sample,
    const PriceLayout& price, const LayoutSearchOptions& options) {
  return LayoutSearch(strategy, sample, price, options).Run(job);
}

}  // namespace pipeloom::planner
