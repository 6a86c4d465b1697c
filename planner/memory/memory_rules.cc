#include "planner/memory/memory_rules.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "planner/memory/stage_choices.h"

namespace pipeloom::planner {
namespace {

// The most sets of operator groups that are offered.
constexpr size_t kMaxSets = 4;

using Setting = std::function<MemoryChoice(int32_t num_layers)>;

int32_t ShareOf(int32_t num_layers, int percent) {
  return (num_layers * percent + 99) / 100;
}

MemoryChoice OffloadFirst(int32_t num_layers, int32_t count) {
  MemoryChoice choice;
  choice.layers.resize(static_cast<size_t>(num_layers));
  std::fill_n(choice.layers.begin(), count, MemoryStrategy::kOffload);
  return choice;
}

// Returns the sum of the costs of all layers of all pairs.
emulator::StageCost WholeStep(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches,
    const IdVector<StagePairId, partition::StagePair>& pairs) {
  emulator::StageCost sum;
  for (const partition::StagePair& pair : pairs) {
    if (pair.backward.is_none()) continue;
    const emulator::StageCost cost =
        costs.Cost(partition.stages[pair.stage],
                   microbatches.sub_microbatches[pair.sub_microbatch].shape,
                   pair.needs_input_grad);
    sum.forward += cost.forward;
    sum.activations += cost.activations;
    sum.input += cost.input;
    for (size_t g = 0; g < sum.groups.size(); ++g) {
      sum.groups[g].again += cost.groups[g].again;
      sum.groups[g].bytes += cost.groups[g].bytes;
    }
  }
  return sum;
}

// Returns all settings except keeping everything.
std::vector<Setting> SettingsFor(const JobSpec& job,
                                 const emulator::StageCost& step) {
  std::vector<Setting> settings;
  if (job.Allows(MemoryStrategy::kRecompute)) {
    for (const OperatorGroups groups : WorthwhileGroups(step, kMaxSets)) {
      settings.emplace_back(
          [groups](int32_t n) { return RecomputeGroups(n, groups); });
    }
    for (const int percent : {25, 50, 75}) {
      settings.emplace_back([percent](int32_t n) {
        return RecomputeBlock(n, ShareOf(n, percent));
      });
    }
    for (const int32_t period : {1, 2, 4}) {
      settings.emplace_back(
          [period](int32_t n) { return RecomputeUniform(n, period); });
    }
  }
  if (job.Allows(MemoryStrategy::kOffload) &&
      job.cluster.device.host_bandwidth.bytes_per_second > 0) {
    for (const int percent : {25, 50, 100}) {
      settings.emplace_back([percent](int32_t n) {
        return OffloadFirst(n, ShareOf(n, percent));
      });
    }
  }
  return settings;
}

}  // namespace

MemoryRules::MemoryRules(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches,
    const IdVector<StagePairId, partition::StagePair>& pairs) {
  const std::vector<Setting> settings = SettingsFor(
      costs.job(), WholeStep(costs, partition, microbatches, pairs));
  num_settings_ = 1 + static_cast<int32_t>(settings.size());
  IdVector<StageId, std::vector<MemoryChoice>> choices(partition.stages.size());
  for (const StageId s : partition.stages.ids()) {
    for (const Setting& setting : settings) {
      choices[s].push_back(setting(partition.stages[s].num_layers));
    }
  }
  memory_ =
      partition::MakeStepMemory(costs, partition, microbatches, pairs, choices);
  const size_t lists = memory_.lists.size();
  module_of_list_.resize(lists);
  candidate_.resize(lists);
  sums_.assign(costs.job().model.modules.size(),
               std::vector<Sums>(static_cast<size_t>(num_settings_)));
  for (const StagePairId id : pairs.ids()) {
    if (pairs[id].backward.is_none()) continue;
    const StageId stage = pairs[id].stage;
    const auto list = static_cast<size_t>(memory_.list_of[id]);
    const ModuleId module = partition.stages[stage].module;
    module_of_list_[list] = module;
    std::vector<int32_t>& candidates = candidate_[list];
    if (candidates.empty()) {
      candidates.push_back(0);
      const auto& offered = memory_.lists[list];
      for (const MemoryChoice& choice : choices[stage]) {
        int32_t found = choice.keeps_everything() ? 0 : -1;
        for (size_t j = 1; j < offered.size() && found < 0; ++j) {
          if (offered[j].choice == choice) found = static_cast<int32_t>(j);
        }
        candidates.push_back(found);
      }
    }
    for (int32_t k = 0; k < num_settings_; ++k) {
      Sums& sums = sums_[module][static_cast<size_t>(k)];
      if (candidates[static_cast<size_t>(k)] < 0) {
        sums.possible = false;
        continue;
      }
      const partition::MemoryEffect& effect = Effect(list, k);
      sums.extra += effect.extra;
      sums.held += effect.held();
    }
  }
}

const partition::MemoryEffect& MemoryRules::Effect(size_t list,
                                                   int32_t setting) const {
  const int32_t candidate = candidate_[list][static_cast<size_t>(setting)];
  return memory_.lists[list][static_cast<size_t>(candidate)].effect;
}

partition::MemorySelection MemoryRules::SelectionOf(
    const MemoryRule& rule) const {
  partition::MemorySelection selection = memory_.KeepEverything();
  for (const StagePairId id : selection.ids()) {
    const auto list = static_cast<size_t>(memory_.list_of[id]);
    if (candidate_[list].empty()) continue;
    const int32_t setting = rule[module_of_list_[list]];
    selection[id] = candidate_[list][static_cast<size_t>(setting)];
  }
  return selection;
}

Duration MemoryRules::BusiestRank(const StageGraph& graph,
                                  const MemoryRule& rule) const {
  IdVector<RankId, Duration> work(graph.num_ranks());
  for (const Task& task : graph.tasks()) work[task.rank] += task.duration;
  for (const StagePairId id : memory_.pairs.ids()) {
    const auto list = static_cast<size_t>(memory_.list_of[id]);
    if (candidate_[list].empty()) continue;
    work[graph.task(memory_.pairs[id].forward).rank] +=
        Effect(list, rule[module_of_list_[list]]).extra;
  }
  return *std::max_element(work.begin(), work.end());
}

bool MemoryRules::Possible(const MemoryRule& rule) const {
  for (const ModuleId m : rule.ids()) {
    if (!sums_[m][static_cast<size_t>(rule[m])].possible) return false;
  }
  return true;
}

Duration MemoryRules::Extra(const MemoryRule& rule) const {
  Duration extra{};
  for (const ModuleId m : rule.ids()) {
    extra += sums_[m][static_cast<size_t>(rule[m])].extra;
  }
  return extra;
}

bool MemoryRules::Covers(const MemoryRule& a, const MemoryRule& b) const {
  for (size_t list = 0; list < candidate_.size(); ++list) {
    if (candidate_[list].empty()) continue;
    const ModuleId m = module_of_list_[list];
    const partition::MemoryEffect& x = Effect(list, a[m]);
    const partition::MemoryEffect& y = Effect(list, b[m]);
    if (x.extra > y.extra || x.copy > y.copy || x.held() > y.held() ||
        x.forward_alloc > y.forward_alloc ||
        x.backward_peak() > y.backward_peak()) {
      return false;
    }
  }
  return true;
}

std::vector<MemoryRule> MemoryRules::SameForAll() const {
  std::vector<MemoryRule> rules;
  for (int32_t k = 0; k < num_settings_; ++k) {
    MemoryRule rule(sums_.size(), k);
    if (Possible(rule)) rules.push_back(std::move(rule));
  }
  const auto held = [&](const MemoryRule& rule) {
    Bytes bytes;
    for (const ModuleId m : rule.ids()) {
      bytes += sums_[m][static_cast<size_t>(rule[m])].held;
    }
    return bytes;
  };
  std::stable_sort(rules.begin() + 1, rules.end(),
                   [&](const MemoryRule& a, const MemoryRule& b) {
                     return std::tuple(Extra(a), -held(a)) <
                            std::tuple(Extra(b), -held(b));
                   });
  std::vector<MemoryRule> good;
  for (size_t i = 0; i < rules.size(); ++i) {
    bool covered = false;
    for (size_t j = 0; j < rules.size() && !covered && i > 0; ++j) {
      if (i == j || !Covers(rules[j], rules[i])) continue;
      covered = j < i || !Covers(rules[i], rules[j]);
    }
    if (!covered) good.push_back(rules[i]);
  }
  return good;
}

std::vector<MemoryRule> MemoryRules::Cheaper(const MemoryRule& rule,
                                             ModuleId m) const {
  const auto extra = [&](int32_t setting) {
    return sums_[m][static_cast<size_t>(setting)].extra;
  };
  std::vector<int32_t> settings;
  for (int32_t k = 0; k < num_settings_; ++k) {
    if (extra(k) < extra(rule[m]) &&
        sums_[m][static_cast<size_t>(k)].possible) {
      settings.push_back(k);
    }
  }
  std::stable_sort(settings.begin(), settings.end(),
                   [&](int32_t a, int32_t b) { return extra(a) < extra(b); });
  std::vector<MemoryRule> rules;
  for (const int32_t k : settings) {
    MemoryRule other = rule;
    other[m] = k;
    rules.push_back(std::move(other));
  }
  return rules;
}

}  // namespace pipeloom::planner
