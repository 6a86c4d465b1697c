#include "planner/stage_choices.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "planner/knapsack.h"

namespace pipeloom::planner {
namespace {

using partition::LayerCosts;
using partition::MemoryEffect;
using partition::PassForm;

struct Candidate {
  MemoryChoice choice{};
  MemoryEffect effect{};
};

bool Covers(const MemoryEffect& a, const MemoryEffect& b) {
  return a.extra <= b.extra && a.held() <= b.held() &&
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
      AddGroup(num_layers_);
      AddGroup((num_layers_ + 1) / 2);
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
    return {.layers =
                std::vector<MemoryStrategy>(num_layers_, MemoryStrategy::kKeep),
            .grouped = false};
  }
  // The first layers that can be copied in time.
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
  void AddGroup(size_t count) {
    MemoryChoice choice = Blank();
    std::fill_n(choice.layers.begin(), count, MemoryStrategy::kRecompute);
    choice.grouped = true;
    Offer(std::move(choice));
  }
  // The knapsack's answers with the first `offloaded` layers on the host.
  void AddFront(size_t offloaded) {
    std::vector<KnapsackClass> classes;
    for (size_t i = offloaded; i < num_layers_; ++i) {
      const emulator::StageCost& layer = layers_.layers()[i];
      KnapsackClass items = {{.cost = 0, .weight = layer.activations.count()}};
      if (recompute_) {
        items.push_back(
            {.cost = layer.forward.count(), .weight = layer.input.count()});
      }
      classes.push_back(std::move(items));
    }
    const KnapsackFront front(classes, {.max_states = 256});
    for (int32_t point = 0; point < front.size(); ++point) {
      const std::vector<int32_t> items = front.Items(point);
      MemoryChoice choice = Blank();
      std::fill_n(choice.layers.begin(), offloaded, MemoryStrategy::kOffload);
      for (size_t i = 0; i < items.size(); ++i) {
        if (items[i] == 1) {
          choice.layers[offloaded + i] = MemoryStrategy::kRecompute;
        }
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

std::vector<MemoryChoice> ChoicesFor(const LayerCosts& layers,
                                     const JobSpec& job,
                                     int32_t max_candidates) {
  std::vector<Candidate> all = Collector(layers, job).Collect();
  // Keeping everything stays whatever else there is.
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
  // The leanest, and of each range of held bytes the fastest.
  const auto most = static_cast<size_t>(std::max(1, max_candidates));
  std::vector<bool> chosen(good.size(), good.size() <= most);
  if (good.size() > most) {
    chosen[0] = true;
    if (most > 1) chosen.back() = true;
    const double low = static_cast<double>(good.back().effect.held().count());
    const double high = static_cast<double>(good[0].effect.held().count());
    const size_t buckets = most > 2 ? most - 2 : 0;
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
  IdVector<StageId, std::vector<MemoryChoice>> choices(partition.stages.size());
  for (const StageId s : partition.stages.ids()) {
    const Stage& stage = partition.stages[s];
    const WorkShape& shape = largest[stage.module];
    if (shape.empty()) continue;
    choices[s] =
        ChoicesFor(LayerCosts(costs, stage, shape, /*needs_input_grad=*/true),
                   costs.job(), max_candidates);
  }
  return choices;
}

}  // namespace pipeloom::planner
