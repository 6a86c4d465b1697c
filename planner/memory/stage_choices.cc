#include "planner/memory/stage_choices.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "planner/memory/knapsack.h"

namespace pipeloom::planner {
namespace {

using partition::LayerCosts;
using partition::MemoryEffect;
using partition::PassForm;

struct Candidate {
  MemoryChoice choice{};
  MemoryEffect effect{};
};

// The most sets of groups of a layer that the knapsack tries.
constexpr size_t kMaxSets = 3;

bool Covers(const MemoryEffect& a, const MemoryEffect& b) {
  return a.extra <= b.extra && a.held() <= b.held() &&
         a.forward_alloc <= b.forward_alloc &&
         a.backward_peak() <= b.backward_peak() && a.copy <= b.copy;
}

class Collector {
 public:
  Collector(const LayerCosts& layers, const JobSpec& job)
      : layers_(layers),
        num_layers_(layers.layers().size()),
        recompute_(job.Allows(MemoryStrategy::kRecompute)),
        offload_(job.Allows(MemoryStrategy::kOffload) &&
                 job.cluster.device.host_bandwidth.bytes_per_second > 0) {}

  std::vector<Candidate> Collect() {
    Offer({});
    AddFront(0);
    if (recompute_ && num_layers_ > 1) {
      const auto n = static_cast<int32_t>(num_layers_);
      for (const int32_t period : {2, 4, (n + 1) / 2, n}) {
        if (period > 1 && period <= n) Offer(RecomputeUniform(n, period));
      }
      // Half of the stage with one checkpoint; the rest is kept.
      MemoryChoice half = RecomputeBlock(n, (n + 1) / 2);
      half.period = (n + 1) / 2;
      Offer(std::move(half));
    }
    if (offload_) {
      const size_t most = MostOffloaded();
      if (most > 0) AddFront(most);
      if (most > 1) AddFront(most / 2);
    }
    return std::move(candidates_);
  }

 private:
  void Offer(MemoryChoice choice) {
    MemoryEffect effect = layers_.Effect(choice, PassForm::kFused);
    if (!layers_.CopiesKeepUp(effect)) return;
    candidates_.push_back({std::move(choice), effect});
  }
  MemoryChoice Blank() const {
    return {.layers = std::vector<LayerMemory>(num_layers_)};
  }
  // Returns how many of the first layers can be copied in time.
  size_t MostOffloaded() const {
    MemoryChoice choice = Blank();
    size_t most = 0;
    while (most < num_layers_) {
      choice.layers[most] = MemoryStrategy::kOffload;
      if (!layers_.CopiesKeepUp(layers_.Effect(choice, PassForm::kFused)))
        break;
      ++most;
    }
    return most;
  }
  // Returns the options of a layer; keeping is the first.
  std::vector<LayerMemory> OptionsFor(const emulator::StageCost& layer) const {
    std::vector<LayerMemory> options = {MemoryStrategy::kKeep};
    if (!recompute_) return options;
    for (const OperatorGroups groups : WorthwhileGroups(layer, kMaxSets)) {
      options.emplace_back(MemoryStrategy::kRecompute, groups);
    }
    options.emplace_back(MemoryStrategy::kRecompute);
    return options;
  }
  static KnapsackItem ItemOf(const emulator::StageCost& layer,
                             const LayerMemory& memory) {
    KnapsackItem item{.cost = 0, .weight = layer.activations.count()};
    if (memory.recomputes_fully()) {
      return {.cost = layer.forward.count(), .weight = layer.input.count()};
    }
    for (const OperatorGroup g : kAllOperatorGroups) {
      if (!memory.groups.Has(g)) continue;
      item.cost += layer.groups[static_cast<size_t>(g)].again.count();
      item.weight -= layer.groups[static_cast<size_t>(g)].bytes.count();
    }
    return item;
  }
  // Offers the knapsack's answers with the first `offloaded` layers on the
  // host.
  void AddFront(size_t offloaded) {
    std::vector<KnapsackClass> classes;
    std::vector<std::vector<LayerMemory>> options;
    for (size_t i = offloaded; i < num_layers_; ++i) {
      const emulator::StageCost& layer = layers_.layers()[i];
      if (i > offloaded && layer == layers_.layers()[i - 1]) {
        options.push_back(options.back());
        classes.push_back(classes.back());
        continue;
      }
      options.push_back(OptionsFor(layer));
      KnapsackClass& items = classes.emplace_back();
      for (const LayerMemory& memory : options.back()) {
        items.push_back(ItemOf(layer, memory));
      }
    }
    const KnapsackFront front(classes, {.max_states = 128});
    for (int32_t point = 0; point < front.size(); ++point) {
      std::vector<int32_t> items = front.Items(point);
      // Among equal layers, those that keep least come first; options are
      // sorted from kept to recomputed.
      for (size_t begin = 0; begin < items.size();) {
        size_t end = begin + 1;
        while (end < items.size() && layers_.layers()[offloaded + end] ==
                                         layers_.layers()[offloaded + begin]) {
          ++end;
        }
        std::sort(items.begin() + static_cast<std::ptrdiff_t>(begin),
                  items.begin() + static_cast<std::ptrdiff_t>(end),
                  std::greater<>());
        begin = end;
      }
      MemoryChoice choice = Blank();
      std::fill_n(choice.layers.begin(), offloaded, MemoryStrategy::kOffload);
      for (size_t i = 0; i < items.size(); ++i) {
        choice.layers[offloaded + i] =
            options[i][static_cast<size_t>(items[i])];
      }
      if (!choice.keeps_everything()) Offer(std::move(choice));
    }
  }

  const LayerCosts& layers_;
  size_t num_layers_;
  bool recompute_;
  bool offload_;
  std::vector<Candidate> candidates_{};
};

}  // namespace

std::vector<OperatorGroups> WorthwhileGroups(const emulator::StageCost& layer,
                                             size_t most) {
  struct Set {
    OperatorGroups groups{};
    double time = 0;
    double bytes = 0;
  };
  std::vector<Set> sets;
  const Bytes enough = layer.activations - layer.input;
  for (uint32_t bits = 1; bits <= OperatorGroups::kAllBits; ++bits) {
    const OperatorGroups groups = OperatorGroups::FromBits(bits);
    Duration time{};
    Bytes bytes;
    bool all_give = true;
    for (const OperatorGroup g : kAllOperatorGroups) {
      if (!groups.Has(g)) continue;
      const emulator::GroupCost& cost = layer.groups[static_cast<size_t>(g)];
      all_give = all_give && cost.bytes > Bytes(0);
      time += cost.again;
      bytes += cost.bytes;
    }
    if (!all_give || time >= layer.forward || bytes >= enough) continue;
    sets.push_back({groups, static_cast<double>(time.count()),
                    static_cast<double>(bytes.count())});
  }
  std::stable_sort(sets.begin(), sets.end(), [](const Set& a, const Set& b) {
    return std::pair(a.time, -a.bytes) < std::pair(b.time, -b.bytes);
  });
  std::vector<Set> front;
  for (const Set& set : sets) {
    if (front.empty() || set.bytes > front.back().bytes) front.push_back(set);
  }
  while (front.size() > most) {
    // Without a set, what it alone gives costs the time of the next one.
    size_t least = 0;
    double least_loss = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i + 1 < front.size(); ++i) {
      const double before = i > 0 ? front[i - 1].bytes : 0;
      const double loss =
          (front[i].bytes - before) * (front[i + 1].time - front[i].time);
      if (loss < least_loss) {
        least = i;
        least_loss = loss;
      }
    }
    front.erase(front.begin() + static_cast<std::ptrdiff_t>(least));
  }
  std::vector<OperatorGroups> result;
  for (const Set& set : front) result.push_back(set.groups);
  return result;
}

std::vector<MemoryChoice> ChoicesFor(const LayerCosts& layers,
                                     const JobSpec& job,
                                     int32_t max_candidates) {
  std::vector<Candidate> all = Collector(layers, job).Collect();
  // Keeping everything always stays.
  std::stable_sort(
      all.begin() + 1, all.end(), [](const Candidate& a, const Candidate& b) {
        return std::tuple(-a.effect.held(), a.effect.extra, a.effect.copy,
                          a.effect.backward_peak()) <
               std::tuple(-b.effect.held(), b.effect.extra, b.effect.copy,
                          b.effect.backward_peak());
      });
  std::vector<Candidate> good;
  for (size_t i = 0; i < all.size(); ++i) {
    bool covered = false;
    for (size_t j = 0; j < all.size() && !covered && i > 0; ++j) {
      if (i == j || !Covers(all[j].effect, all[i].effect)) continue;
      covered = j < i || !Covers(all[i].effect, all[j].effect);
    }
    if (!covered) good.push_back(std::move(all[i]));
  }
  // Takes the choice that holds least, the one that peaks least in the
  // backward, and the fastest of each range of held bytes.
  const auto most = static_cast<size_t>(std::max(1, max_candidates));
  std::vector<bool> chosen(good.size(), good.size() <= most);
  if (good.size() > most) {
    chosen[0] = true;
    if (most > 1) chosen.back() = true;
    const double low = static_cast<double>(good.back().effect.held().count());
    const double high = static_cast<double>(good[0].effect.held().count());
    const size_t buckets = most > 3 ? most - 3 : 0;
    if (most > 2) {
      const auto lowest = std::min_element(
          good.begin(), good.end(), [](const Candidate& a, const Candidate& b) {
            return std::tuple(a.effect.backward_peak(), a.effect.extra) <
                   std::tuple(b.effect.backward_peak(), b.effect.extra);
          });
      chosen[static_cast<size_t>(lowest - good.begin())] = true;
    }
    std::vector<size_t> fastest(buckets, 0);
    for (size_t i = 1; i + 1 < good.size() && buckets > 0; ++i) {
      const double at =
          (static_cast<double>(good[i].effect.held().count()) - low) /
          std::max(1.0, high - low) * static_cast<double>(buckets);
      size_t& best = fastest[std::min(buckets - 1,
                                      static_cast<size_t>(std::max(0.0, at)))];
      if (best == 0 || good[i].effect.extra < good[best].effect.extra) best = i;
    }
    for (const size_t i : fastest) {
      if (i > 0) chosen[i] = true;
    }
  }
  std::vector<MemoryChoice> choices;
  for (size_t i = 0; i < good.size(); ++i) {
    if (chosen[i]) choices.push_back(std::move(good[i].choice));
  }
  return choices;
}

IdVector<StageId, std::vector<MemoryChoice>> StageChoices(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches, int32_t max_candidates) {
  IdVector<ModuleId, WorkShape> largest(costs.job().model.modules.size());
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    if (sub.shape.tokens > largest[sub.module].tokens) {
      largest[sub.module] = sub.shape;
    }
  }
  // Most stages of a module are alike, so equal ones are priced once.
  std::vector<std::pair<LayerCosts, StageId>> priced;
  IdVector<StageId, std::vector<MemoryChoice>> choices(partition.stages.size());
  for (const StageId s : partition.stages.ids()) {
    const Stage& stage = partition.stages[s];
    const WorkShape& shape = largest[stage.module];
    if (shape.empty()) continue;
    LayerCosts layers(costs, stage, shape, /*needs_input_grad=*/true);
    const auto equal =
        std::find_if(priced.begin(), priced.end(),
                     [&](const auto& other) { return other.first == layers; });
    if (equal != priced.end()) {
      choices[s] = choices[equal->second];
      continue;
    }
    choices[s] = ChoicesFor(layers, costs.job(), max_candidates);
    priced.emplace_back(std::move(layers), s);
  }
  return choices;
}

}  // namespace pipeloom::planner
