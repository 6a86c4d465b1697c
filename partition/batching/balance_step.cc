#include "partition/batching/balance_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "partition/batching/assign_loads.h"
#include "partition/batching/load_meter.h"
#include "partition/batching/token_count.h"

namespace pipeloom::partition {
namespace {

// Keeps sums in range even for absurd samples.
constexpr double kMaxCost = 1e15;

struct Item {
  SampleId id{};
  Load load{};
  IdVector<ModuleId, int64_t> cost{};
  int64_t total = 0;
};

using Packing = std::vector<std::vector<SampleId>>;

// A packer of items into `count` microbatches.
class Leveler {
 public:
  Leveler(const LoadMeter& meter, const std::vector<const Item*>& items,
          int64_t count)
      : meter_(meter), items_(items), bins_(static_cast<size_t>(count)) {
    if (items.empty()) return;
    share_.assign(items.front()->cost.size(), 0);
    for (const Item* item : items) {
      for (const ModuleId m : share_.ids()) {
        share_[m] += static_cast<double>(item->cost[m]);
      }
    }
    for (Bin& bin : bins_) bin.cost.assign(share_.size(), 0);
  }

  // Packs the items; nullopt if one has no room anywhere. Costly items first,
  // each where it makes the microbatches least uneven; or, if `tight`, long
  // items first, each where it first fits.
  std::optional<Packing> Pack(bool tight) {
    std::vector<const Item*> order = items_;
    std::stable_sort(
        order.begin(), order.end(), [&](const Item* a, const Item* b) {
          return tight ? a->load.tokens > b->load.tokens : a->total > b->total;
        });
    for (const Item* item : order) {
      Bin* best = nullptr;
      double least = 0;
      for (Bin& bin : bins_) {
        Load sum = bin.load;
        sum += item->load;
        // An item beyond a limit has a microbatch of its own.
        if (!bin.samples.empty() && !meter_.Fits(sum)) continue;
        const double worse = tight ? 0 : Unevenness(bin, *item);
        if (best != nullptr && worse >= least) continue;
        best = &bin;
        least = worse;
        if (tight) break;
      }
      if (best == nullptr) return std::nullopt;
      best->samples.push_back(item->id);
      best->load += item->load;
      best->total += item->total;
      for (const ModuleId m : share_.ids()) {
        best->cost[m] += static_cast<double>(item->cost[m]);
      }
    }
    std::vector<int64_t> sizes;
    std::erase_if(bins_, [](const Bin& bin) { return bin.samples.empty(); });
    for (const Bin& bin : bins_) sizes.push_back(bin.total);
    Packing packing;
    for (const int32_t i : OrderBySize(sizes)) {
      std::vector<SampleId>& samples = bins_[static_cast<size_t>(i)].samples;
      std::sort(samples.begin(), samples.end());
      packing.push_back(std::move(samples));
    }
    return packing;
  }

 private:
  struct Bin {
    std::vector<SampleId> samples{};
    Load load{};
    IdVector<ModuleId, double> cost{};
    int64_t total = 0;
  };

  // Returns how much the sum of squares of the modules' shares grows.
  double Unevenness(const Bin& bin, const Item& item) const {
    double growth = 0;
    for (const ModuleId m : share_.ids()) {
      if (share_[m] <= 0) continue;
      const double more = static_cast<double>(item.cost[m]);
      growth +=
          more * (2 * bin.cost[m] + more) / (share_[m] * share_[m]) * Weight(m);
    }
    return growth;
  }
  // Returns the weight of a module: its share of the work.
  double Weight(ModuleId m) const {
    return share_[m] /
           std::accumulate(share_.items().begin(), share_.items().end(), 0.0);
  }

  const LoadMeter& meter_;
  const std::vector<const Item*>& items_;
  std::vector<Bin> bins_;
  IdVector<ModuleId, double> share_{};  // Cost in the whole replica.
};

// Packs items into `count` microbatches, or as few more as necessary, up to
// `most`.
std::optional<Packing> PackReplica(const LoadMeter& meter,
                                   const std::vector<const Item*>& items,
                                   int64_t count, int64_t most) {
  const auto size = static_cast<int64_t>(items.size());
  for (int64_t n = std::min(count, size); n <= std::min(most, size); ++n) {
    for (const bool tight : {false, true}) {
      auto packing = Leveler(meter, items, n).Pack(tight);
      if (packing.has_value() && !packing->empty()) return packing;
    }
  }
  return std::nullopt;
}

// Balances a step whose limits bind: first makes level microbatches of all
// samples, then assigns whole ones to the replicas, equally many to each,
// costly with cheap ones. Returns the step unchanged if that cannot be packed
// either.
PackedStep DealMicrobatches(const LoadMeter& meter,
                            const std::vector<Item>& items, int32_t replicas,
                            int64_t microbatches, const PackedStep& step) {
  std::vector<const Item*> all;
  for (const Item& item : items) all.push_back(&item);
  auto packing = Leveler(meter, all, replicas * microbatches).Pack(false);
  if (!packing.has_value()) {
    packing = Leveler(meter, all, replicas * microbatches).Pack(true);
  }
  if (!packing.has_value() ||
      static_cast<int32_t>(packing->size()) < replicas) {
    return step;
  }
  // The packing has the smallest first, then descends.
  std::rotate(packing->begin(), packing->begin() + 1, packing->end());
  PackedStep balanced = step;
  for (auto& replica : balanced.packed) replica.clear();
  const auto groups = static_cast<size_t>(replicas);
  for (size_t i = 0; i < packing->size(); ++i) {
    const size_t turn = i % (2 * groups);
    const size_t r = turn < groups ? turn : 2 * groups - 1 - turn;
    balanced.packed[r].push_back(std::move((*packing)[i]));
  }
  for (auto& replica : balanced.packed) {
    std::rotate(replica.begin(), replica.end() - 1, replica.end());
  }
  IdVector<SampleId, int64_t> cost(step.samples.samples.size(), 0);
  for (const Item& item : items) cost[item.id] = item.total;
  const auto heaviest = [&](const PackedStep& dealt) {
    int64_t most = 0;
    for (const auto& replica : dealt.packed) {
      int64_t sum = 0;
      for (const auto& microbatch : replica) {
        for (const SampleId id : microbatch) sum += cost[id];
      }
      most = std::max(most, sum);
    }
    return most;
  };
  return heaviest(balanced) < heaviest(step) ? balanced : step;
}

}  // namespace

absl::StatusOr<SampleCosts> SampleCosts::Create(
    const JobSpec& job, const emulator::StageCostModel& costs,
    const BatchMetadata& typical_samples) {
  PIPELOOM_ASSIGN_OR_RETURN(const auto typical,
                            MeasureTypicalWork(job, typical_samples));
  const LayerPricing pricing(job, costs);
  SampleCosts result;
  result.rates_.resize(job.model.modules.size());
  for (const ModuleId m : typical.ids()) {
    if (!typical[m].present()) continue;
    const WorkShape shape = typical[m].OfSlice(0);
    const auto price = [&](const WorkShape& s) {
      return static_cast<double>(pricing.AllPasses(m, s).count());
    };
    const double whole = price(shape);
    Rates& rates = result.rates_[m];
    WorkShape more = shape;
    more.squared_tokens *= 2;
    if (shape.squared_tokens > 0) {
      rates.per_square =
          std::max(0.0, price(more) - whole) / shape.squared_tokens;
    }
    more = shape;
    more.context_pairs *= 2;
    if (shape.context_pairs > 0) {
      rates.per_pair = std::max(0.0, price(more) - whole) / shape.context_pairs;
    }
    rates.per_token =
        std::max(0.0, whole - rates.per_square * shape.squared_tokens -
                          rates.per_pair * shape.context_pairs) /
        static_cast<double>(shape.tokens);
  }
  return result;
}

IdVector<ModuleId, int64_t> SampleCosts::Of(
    const ModelSpec& model, const SampleMetadata& sample) const {
  const auto shapes = SampleWork(model, sample);
  IdVector<ModuleId, int64_t> cost(rates_.size(), 0);
  for (const ModuleId m : rates_.ids()) {
    const Rates& r = rates_[m];
    const double ns = r.per_token * static_cast<double>(shapes[m].tokens) +
                      r.per_square * shapes[m].squared_tokens +
                      r.per_pair * shapes[m].context_pairs;
    cost[m] = std::llround(std::min(ns, kMaxCost));
  }
  return cost;
}

PackedStep BalanceStep(const JobSpec& job, const SampleCosts& costs,
                       const PackedStep& step) {
  const LoadMeter meter(job);
  std::vector<Item> items;
  std::vector<int64_t> totals;
  std::vector<int32_t> given;  // Replicas of the items in the given step.
  size_t microbatches = 0;     // Most of any replica.
  for (size_t r = 0; r < step.packed.size(); ++r) {
    microbatches = std::max(microbatches, step.packed[r].size());
    for (const auto& microbatch : step.packed[r]) {
      for (const SampleId id : microbatch) {
        given.push_back(static_cast<int32_t>(r));
        const SampleMetadata& sample = step.samples.samples[id];
        Item& item = items.emplace_back();
        item.id = id;
        item.load = meter.Of(sample);
        item.cost = costs.Of(job.model, sample);
        for (const int64_t cost : item.cost) item.total += cost;
        totals.push_back(item.total);
      }
    }
  }
  const auto replicas = static_cast<int32_t>(step.packed.size());
  std::vector<int32_t> replica_of = AssignLoads(totals, replicas);
  const auto heaviest = [&](const std::vector<int32_t>& group) {
    const std::vector<int64_t> loads = GroupLoads(totals, group, replicas);
    return *std::max_element(loads.begin(), loads.end());
  };
  if (heaviest(given) <= heaviest(replica_of)) replica_of = given;
  std::vector<std::vector<const Item*>> mine(step.packed.size());
  for (size_t i = 0; i < items.size(); ++i) {
    mine[static_cast<size_t>(replica_of[i])].push_back(&items[i]);
  }
  PackedStep balanced = step;
  const auto most = std::max(static_cast<int64_t>(microbatches),
                             int64_t{job.training.microbatches});
  for (size_t r = 0; r < mine.size(); ++r) {
    auto packing =
        PackReplica(meter, mine[r], static_cast<int64_t>(microbatches), most);
    if (!packing.has_value()) {
      return DealMicrobatches(meter, items, replicas,
                              static_cast<int64_t>(microbatches), step);
    }
    balanced.packed[r] = *std::move(packing);
  }
  return balanced;
}

}  // namespace pipeloom::partition
