#include "partition/placement/recipe.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/placement/layer_partition.h"
#include "partition/placement/level_ranks.h"

namespace pipeloom::partition {
namespace {

constexpr double kNegligibleShare = 0.05;
constexpr int32_t kMaxSegments = 4;

int64_t FixedSize(const JobSpec& job, ModuleId m) {
  for (const TrainingSpec::SubMicrobatchSize& size :
       job.training.sub_microbatch_sizes) {
    if (size.module == job.model.modules[m].name) return size.instances;
  }
  return 0;
}

const PartitionRules::OwnRanks* OwnRanksOf(const JobSpec& job, ModuleId m) {
  for (const PartitionRules::OwnRanks& own : job.partition.own_ranks) {
    if (own.module == job.model.modules[m].name) return &own;
  }
  return nullptr;
}

// The layers of a rule, with the module's id and the first layer counted from
// 0.
struct Range {
  ModuleId module{};
  int32_t first = 0;
  int32_t count = 0;
  bool Overlaps(ModuleId m, LayerId layer, int32_t num_layers) const {
    return m == module && layer.value() < first + count &&
           first < layer.value() + num_layers;
  }
};

Range Resolve(const JobSpec& job, const PartitionRules::Layers& layers) {
  for (const ModuleId m : job.model.modules.ids()) {
    if (job.model.modules[m].name != layers.module) continue;
    const int32_t n = job.model.modules[m].layers.size();
    const int32_t first = layers.first < 0 ? n + layers.first : layers.first;
    return {m, first, layers.count};
  }
  return {};
}

int32_t ResolveRank(const JobSpec& job, int32_t rank) {
  return rank < 0 ? job.parallel.pp + rank : rank;
}

// Merges units that a rule keeps together.
void MergeUnits(const JobSpec& job, std::vector<LayerUnit>* units) {
  for (const PartitionRules::Together& rule : job.partition.together) {
    for (const PartitionRules::Layers& layers : rule.layers) {
      const Range range = Resolve(job, layers);
      std::vector<LayerUnit> merged;
      bool open = false;
      for (const LayerUnit& unit : *units) {
        const bool in =
            range.Overlaps(unit.module, unit.first_layer, unit.num_layers);
        if (in && open) {
          merged.back().num_layers += unit.num_layers;
          merged.back().weight += unit.weight;
        } else {
          merged.push_back(unit);
        }
        open = in;
      }
      *units = std::move(merged);
    }
  }
}

}  // namespace

std::string PartitionRecipe::ToString(const ModelSpec& model) const {
  std::string text;
  for (const ModuleId m : modules.ids()) {
    const ModuleRecipe& r = modules[m];
    absl::StrAppend(&text, text.empty() ? "" : ", ", model.modules[m].name);
    if (!one_chain || m == ModuleId(0)) {
      absl::StrAppend(&text, " ", r.segments,
                      r.map == RankMap::kVee ? " vee" : "",
                      r.reversed ? " reversed" : "");
      if (r.num_ranks > 0) {
        absl::StrAppend(&text, " on ranks ", r.first_rank, "-",
                        r.first_rank + r.num_ranks - 1);
      }
    }
    if (r.sub_microbatch > 0) absl::StrAppend(&text, " of ", r.sub_microbatch);
  }
  return absl::StrCat(text, one_chain ? ", one chain" : "",
                      level_ranks ? ", level" : "");
}

int32_t PartitionBuilder::Chain::RankOf(int32_t run) const {
  const int32_t n = recipe.num_ranks;
  const int32_t place = run % n;
  const bool returns = recipe.map == RankMap::kVee && run / n % 2 == 1;
  const bool back = returns != recipe.reversed;
  return recipe.first_rank + (back ? n - 1 - place : place);
}

std::vector<double> PartitionBuilder::Chain::SlowOfRuns(int32_t runs) const {
  std::vector<double> of_runs;
  for (int32_t run = 0; run < runs && !slow.empty(); ++run) {
    of_runs.push_back(slow[static_cast<size_t>(RankOf(run))]);
  }
  return of_runs;
}

int64_t PartitionBuilder::Chain::WeightOf(int32_t run) const {
  int64_t sum = 0;
  for (int32_t u = begins[static_cast<size_t>(run)];
       u < begins[static_cast<size_t>(run) + 1]; ++u) {
    sum += units[static_cast<size_t>(u)].weight;
  }
  if (slow.empty()) return sum;
  return std::llround(static_cast<double>(sum) *
                      slow[static_cast<size_t>(RankOf(run))]);
}

bool PartitionBuilder::Chain::May(int32_t unit, int32_t run) const {
  const std::vector<bool>& runs = allowed[static_cast<size_t>(unit)];
  return runs.empty() || runs[static_cast<size_t>(run)];
}

absl::StatusOr<PartitionBuilder> PartitionBuilder::Create(
    const JobSpec& job, const emulator::StageCostModel& costs,
    const BatchMetadata& sample) {
  PartitionBuilder builder(job);
  auto typical = MeasureTypicalWork(job, sample);
  if (!typical.ok()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the sample of batches that a partition is chosen by: %s",
        typical.status().message()));
  }
  builder.typical_ = *std::move(typical);
  builder.pricing_ = std::make_unique<LayerPricing>(job, costs);
  builder.slowness_ = RankSlowness(costs, builder.typical_);
  return builder;
}

Duration PartitionBuilder::TimeOf(ModuleId m) const {
  const TypicalWork& work = typical_[m];
  if (!work.present()) return kZero;
  return pricing_->AllPasses(m, work.OfSlice(0));
}

int32_t PartitionBuilder::NumUnits(ModuleId module) const {
  return CountWeighty(UnitsOf(module, 0));
}

bool PartitionBuilder::SizeIsFixed(ModuleId m) const {
  return FixedSize(job(), m) > 0;
}

bool PartitionBuilder::RanksAreFixed(ModuleId m) const {
  return OwnRanksOf(job(), m) != nullptr;
}

std::vector<LayerUnit> PartitionBuilder::UnitsOf(ModuleId m,
                                                 int64_t size) const {
  std::vector<LayerUnit> units;
  AppendUnits(m, job().model.modules[m],
              pricing_->SplitWeights(m, typical_[m], size),
              /*glue_loss_head=*/false, &units);
  MergeUnits(job(), &units);
  return units;
}

PartitionRecipe PartitionBuilder::DipRule() const {
  const ModelSpec& model = job().model;
  const int32_t pp = job().parallel.pp;
  PartitionRecipe recipe;
  recipe.modules.resize(model.modules.size());
  IdVector<ModuleId, Duration> forward(model.modules.size(), kZero);  // T_i
  const auto of_microbatch = [&](ModuleId m) {
    return ToSeconds(forward[m]) * static_cast<double>(typical_[m].Slices(
                                       recipe.modules[m].sub_microbatch));
  };
  double total = 0;
  for (const ModuleId m : model.modules.ids()) {
    const TypicalWork& work = typical_[m];
    int64_t& size = recipe.modules[m].sub_microbatch;
    size = FixedSize(job(), m);
    if (!work.present()) continue;
    if (size == 0 && model.modules[m].role != ModuleRole::kBackbone) {
      size = EfficientSize(*pricing_, m, work);
    }
    forward[m] = pricing_->Forward(m, work.OfSlice(size));
    total += of_microbatch(m);
  }
  if (pp == 1) return recipe;
  std::vector<ModuleId> counted;
  std::optional<Duration> least;  // T_1
  for (const ModuleId m : model.modules.ids()) {
    const int32_t layers =
        CountWeighty(UnitsOf(m, recipe.modules[m].sub_microbatch));
    if (layers < pp || !typical_[m].present() || forward[m] <= kZero ||
        of_microbatch(m) < kNegligibleShare * total) {
      continue;
    }
    counted.push_back(m);
    if (!least.has_value() || forward[m] < *least) least = forward[m];
  }
  for (const ModuleId m : counted) {
    const int32_t layers =
        CountWeighty(UnitsOf(m, recipe.modules[m].sub_microbatch)) / pp;
    recipe.modules[m].segments = static_cast<int32_t>(std::clamp<int64_t>(
        forward[m] / *least, 1, std::max(1, std::min(kMaxSegments, layers))));
  }
  return recipe;
}

absl::StatusOr<PartitionRecipe> PartitionBuilder::FeasibleRule() const {
  const PartitionRecipe rule = DipRule();
  const absl::StatusOr<Partition> by_rule = Build(rule);
  if (by_rule.ok()) return rule;
  const auto vee = [](ModuleRecipe* module) {
    module->segments = 2;
    module->map = RankMap::kVee;
  };
  std::vector<PartitionRecipe> others;
  for (const ModuleId m : rule.modules.ids()) {
    others.push_back(rule);
    vee(&others.back().modules[m]);
  }
  others.push_back(rule);
  for (ModuleRecipe& module : others.back().modules) vee(&module);
  others.push_back(rule);
  others.back().one_chain = true;
  for (ModuleRecipe& module : others.back().modules) module.segments = 1;
  others.push_back(others.back());
  vee(&others.back().modules[ModuleId(0)]);
  for (const PartitionRecipe& recipe : others) {
    if (Build(recipe).ok()) return recipe;
  }
  return by_rule.status();
}

// Returns the module whose chain a module with too few layers joins: its
// consumer's, else its producer's, else its own.
ModuleId PartitionBuilder::HostOf(ModuleId module,
                                  const IdVector<ModuleId, bool>& hosts) const {
  for (ModuleId m = module;;) {  // Towards larger ids.
    if (hosts[m]) return m;
    ModuleId next;
    for (const ModuleEdge& edge : job().model.edges) {
      if (edge.from == m && (next.is_none() || edge.to < next)) next = edge.to;
    }
    if (next.is_none()) break;
    m = next;
  }
  for (ModuleId m = module;;) {  // Towards smaller ids.
    if (hosts[m]) return m;
    ModuleId next;
    for (const ModuleEdge& edge : job().model.edges) {
      if (edge.to == m && (next.is_none() || edge.from > next)) {
        next = edge.from;
      }
    }
    if (next.is_none()) break;
    m = next;
  }
  return module;
}

std::vector<PartitionBuilder::Chain> PartitionBuilder::Chains(
    const PartitionRecipe& recipe) const {
  const ModelSpec& model = job().model;
  const int32_t pp = job().parallel.pp;
  IdVector<ModuleId, std::vector<LayerUnit>> units(model.modules.size());
  IdVector<ModuleId, ModuleRecipe> how = recipe.modules;
  IdVector<ModuleId, bool> hosts(model.modules.size());
  for (const ModuleId m : model.modules.ids()) {
    ModuleRecipe& r = how[m];
    const PartitionRules::OwnRanks* own = OwnRanksOf(job(), m);
    if (own != nullptr) {
      r.first_rank = own->first_rank;
      r.num_ranks = own->num_ranks;
    }
    if (r.num_ranks == 0) r.num_ranks = pp - r.first_rank;
    units[m] = UnitsOf(m, r.sub_microbatch);
    hosts[m] = own != nullptr || CountWeighty(units[m]) >= r.num_ranks;
  }
  IdVector<ModuleId, Chain> chains(model.modules.size());
  const bool any_host =
      !recipe.one_chain &&
      std::find(hosts.begin(), hosts.end(), true) != hosts.end();
  for (const ModuleId m : model.modules.ids()) {
    const ModuleId host = any_host ? HostOf(m, hosts) : ModuleId(0);
    chains[host].recipe = how[host];
    chains[host].by_time = typical_[host].present();
    for (LayerUnit unit : units[m]) {
      // Nanoseconds and parameters do not mix.
      if (host != m && typical_[host].present() != typical_[m].present()) {
        unit.weight = 0;
      }
      chains[host].units.push_back(unit);
    }
  }
  std::vector<Chain> result;
  for (Chain& chain : chains) {
    if (chain.units.empty()) continue;
    std::vector<ModuleId> modules;
    for (const LayerUnit& unit : chain.units) {
      if (modules.empty() || modules.back() != unit.module) {
        modules.push_back(unit.module);
      }
    }
    chain.slow = slowness_.Of(modules);
    result.push_back(std::move(chain));
  }
  return result;
}

bool PartitionBuilder::Cut(const std::vector<int32_t>& rank_of_rule,
                           bool level_ranks, std::vector<Chain>* chains) const {
  const auto& rules = job().partition.together;
  for (Chain& chain : *chains) {
    const int32_t runs =
        std::min(chain.recipe.num_ranks * chain.recipe.segments,
                 CountWeighty(chain.units));
    std::vector<int64_t> weights;
    chain.allowed.assign(chain.units.size(), {});
    for (size_t u = 0; u < chain.units.size(); ++u) {
      const LayerUnit& unit = chain.units[u];
      weights.push_back(unit.weight);
      for (size_t i = 0; i < rules.size(); ++i) {
        if (rank_of_rule[i] < 0) continue;
        for (const PartitionRules::Layers& layers : rules[i].layers) {
          if (!Resolve(job(), layers)
                   .Overlaps(unit.module, unit.first_layer, unit.num_layers)) {
            continue;
          }
          std::vector<bool>& may = chain.allowed[u];
          if (may.empty()) may.assign(static_cast<size_t>(runs), true);
          for (int32_t run = 0; run < runs; ++run) {
            if (chain.RankOf(run) != rank_of_rule[i]) {
              may[static_cast<size_t>(run)] = false;
            }
          }
        }
      }
    }
    const bool free = std::all_of(chain.allowed.begin(), chain.allowed.end(),
                                  [](const auto& may) { return may.empty(); });
    const std::vector<double> slow = chain.SlowOfRuns(runs);
    if (free && slow.empty()) {
      chain.begins = SplitLayers(weights, runs);
    } else {
      chain.begins = SplitLayers(weights, runs, chain.allowed, slow);
    }
    if (chain.begins.empty()) return false;
    chain.begins.push_back(static_cast<int32_t>(chain.units.size()));
  }
  if (level_ranks) LevelRanks(chains);
  return true;
}

std::vector<int64_t> PartitionBuilder::Loads(
    const std::vector<Chain>& chains) const {
  std::vector<int64_t> loads(static_cast<size_t>(job().parallel.pp), 0);
  for (const Chain& chain : chains) {
    if (!chain.by_time) continue;
    for (int32_t run = 0; run + 1 < static_cast<int32_t>(chain.begins.size());
         ++run) {
      loads[static_cast<size_t>(chain.RankOf(run))] += chain.WeightOf(run);
    }
  }
  return loads;
}

void PartitionBuilder::LevelRanks(std::vector<Chain>* chains) const {
  std::vector<CutChain> cuts;
  for (const Chain& chain : *chains) {
    if (!chain.by_time) continue;
    CutChain& cut = cuts.emplace_back();
    for (const LayerUnit& unit : chain.units) {
      cut.weights.push_back(unit.weight);
    }
    cut.begins = chain.begins;
    for (size_t run = 0; run + 1 < chain.begins.size(); ++run) {
      cut.rank_of_run.push_back(chain.RankOf(static_cast<int32_t>(run)));
    }
    cut.slow_of_run =
        chain.SlowOfRuns(static_cast<int32_t>(cut.rank_of_run.size()));
    cut.may = [&chain](int32_t unit, int32_t run) {
      return chain.May(unit, run);
    };
  }
  partition::LevelRanks(job().parallel.pp, &cuts);
  size_t next = 0;
  for (Chain& chain : *chains) {
    if (chain.by_time) chain.begins = std::move(cuts[next++].begins);
  }
}

Partition PartitionBuilder::ToPartition(const std::vector<Chain>& chains,
                                        const PartitionRecipe& recipe) const {
  Partition partition;
  partition.num_ranks = job().parallel.pp;
  for (const ModuleRecipe& r : recipe.modules) {
    partition.sub_microbatch_instances.push_back(r.sub_microbatch);
  }
  for (const Chain& chain : chains) {
    const int32_t first_segment = partition.num_segments;
    for (int32_t run = 0; run + 1 < static_cast<int32_t>(chain.begins.size());
         ++run) {
      const SegmentId segment(first_segment + run / chain.recipe.num_ranks);
      bool open = false;
      for (int32_t u = chain.begins[static_cast<size_t>(run)];
           u < chain.begins[static_cast<size_t>(run) + 1]; ++u) {
        const LayerUnit& unit = chain.units[static_cast<size_t>(u)];
        if (open) {
          Stage& last = partition.stages[StageId(partition.stages.size() - 1)];
          if (last.module == unit.module) {
            last.num_layers += unit.num_layers;
            continue;
          }
        }
        partition.stages.push_back({.module = unit.module,
                                    .first_layer = unit.first_layer,
                                    .num_layers = unit.num_layers,
                                    .rank = RankId(chain.RankOf(run)),
                                    .segment = segment});
        open = true;
      }
      partition.num_segments = segment.value() + 1;
    }
  }
  return partition;
}

absl::StatusOr<Partition> PartitionBuilder::Build(
    const PartitionRecipe& recipe) const {
  if (recipe.modules.size() != job().model.modules.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the recipe is for %d modules; the model has %d",
                        recipe.modules.size(), job().model.modules.size()));
  }
  const int32_t pp = job().parallel.pp;
  for (const ModuleRecipe& r : recipe.modules) {
    if (r.segments < 1 || r.first_rank < 0 || r.num_ranks < 0 ||
        r.first_rank + std::max(r.num_ranks, 1) > pp || r.sub_microbatch < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a recipe has %d segments on %d ranks from rank %d, %d instances a "
          "sub-microbatch; it needs a segment, and ranks of the job's %d",
          r.segments, r.num_ranks, r.first_rank, r.sub_microbatch, pp));
    }
  }
  const auto& rules = job().partition.together;
  std::vector<int32_t> rank_of_rule(rules.size(), -1);
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].rank.has_value()) {
      rank_of_rule[i] = ResolveRank(job(), *rules[i].rank);
    }
  }
  std::vector<Chain> chains = Chains(recipe);
  bool cut = Cut(rank_of_rule, recipe.level_ranks, &chains);
  Partition partition;
  if (cut) partition = ToPartition(chains, recipe);
  if (cut && CheckPartitionRules(job(), partition).ok()) return partition;
  // Rules that leave the rank open get the one that is best for all rules so
  // far.
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].rank.has_value() || rules[i].layers.size() < 2) continue;
    std::optional<int64_t> least;
    int32_t best = -1;
    for (int32_t rank = 0; rank < pp; ++rank) {
      rank_of_rule[i] = rank;
      if (!Cut(rank_of_rule, recipe.level_ranks, &chains)) continue;
      const std::vector<int64_t> loads = Loads(chains);
      const int64_t most = *std::max_element(loads.begin(), loads.end());
      if (least.has_value() && *least <= most) continue;
      least = most;
      best = rank;
    }
    rank_of_rule[i] = best;
  }
  cut = Cut(rank_of_rule, recipe.level_ranks, &chains);
  if (cut) partition = ToPartition(chains, recipe);
  if (cut && CheckPartitionRules(job(), partition).ok()) return partition;
  return absl::InvalidArgumentError(absl::StrFormat(
      "no cut of %s over %d ranks keeps the job's partition rules",
      recipe.ToString(job().model), pp));
}

std::optional<Partition> PartitionBuilder::MoveUnit(const Partition& partition,
                                                    StageId stage,
                                                    bool back) const {
  const ModuleId m = partition.stages[stage].module;
  StageId next;
  for (int32_t s = stage.value() + 1; s < partition.stages.size(); ++s) {
    if (partition.stages[StageId(s)].module == m) {
      next = StageId(s);
      break;
    }
  }
  if (next.is_none()) return std::nullopt;
  Partition moved = partition;
  Stage& a = moved.stages[stage];
  Stage& b = moved.stages[next];
  const int32_t border = b.first_layer.value();
  for (const LayerUnit& unit :
       UnitsOf(m, partition.sub_microbatch_instances[m])) {
    const int32_t begin = unit.first_layer.value();
    const int32_t end = begin + unit.num_layers;
    if (!back && end == border && begin > a.first_layer.value()) {
      a.num_layers -= unit.num_layers;
      b.num_layers += unit.num_layers;
      b.first_layer = LayerId(begin);
    } else if (back && begin == border && end < border + b.num_layers) {
      a.num_layers += unit.num_layers;
      b.num_layers -= unit.num_layers;
      b.first_layer = LayerId(end);
    } else {
      continue;
    }
    if (!CheckPartitionRules(job(), moved).ok()) return std::nullopt;
    return moved;
  }
  return std::nullopt;
}

absl::Status CheckPartitionRules(const JobSpec& job,
                                 const Partition& partition) {
  const auto fail = [](const char* rule, size_t i, const std::string& why) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the partition breaks the job's partition.%s[%d]: %s", rule, i, why));
  };
  for (size_t i = 0; i < job.partition.together.size(); ++i) {
    const PartitionRules::Together& rule = job.partition.together[i];
    std::set<RankId> ranks;
    for (const PartitionRules::Layers& layers : rule.layers) {
      const Range range = Resolve(job, layers);
      int32_t stages = 0;
      for (const Stage& stage : partition.stages) {
        if (range.Overlaps(stage.module, stage.first_layer, stage.num_layers)) {
          ranks.insert(stage.rank);
          ++stages;
        }
      }
      if (stages > 1) {
        return fail("together", i,
                    absl::StrFormat("layers %d to %d of \"%s\" are in %d "
                                    "stages",
                                    range.first, range.first + range.count - 1,
                                    layers.module, stages));
      }
    }
    if (ranks.size() > 1) {
      return fail("together", i,
                  absl::StrFormat("its layers are on %d ranks", ranks.size()));
    }
    if (rule.rank.has_value() && !ranks.empty() &&
        ranks.begin()->value() != ResolveRank(job, *rule.rank)) {
      return fail("together", i,
                  absl::StrFormat("its layers are on rank %d, not %d",
                                  ranks.begin()->value(),
                                  ResolveRank(job, *rule.rank)));
    }
  }
  for (size_t i = 0; i < job.partition.own_ranks.size(); ++i) {
    const PartitionRules::OwnRanks& own = job.partition.own_ranks[i];
    for (const Stage& stage : partition.stages) {
      const int32_t rank = stage.rank.value();
      if (job.model.modules[stage.module].name == own.module &&
          (rank < own.first_rank || rank >= own.first_rank + own.num_ranks)) {
        return fail("own_ranks", i,
                    absl::StrFormat("a stage of \"%s\" is on rank %d",
                                    own.module, rank));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::partition
