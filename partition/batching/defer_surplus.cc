#include "partition/batching/defer_surplus.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "partition/batching/load_meter.h"

namespace pipeloom::partition {
namespace {

struct Item {
  SampleId id{};
  Load load{};
  double cost = 0;
};

struct Bin {
  std::vector<Item> items{};
  Load load{};
  double cost = 0;

  void Add(const Item& item) {
    items.push_back(item);
    load += item.load;
    cost += item.cost;
  }
  Item Take(size_t i) {
    const Item item = items[i];
    items.erase(items.begin() + static_cast<int64_t>(i));
    load = {};
    for (const Item& left : items) load += left.load;
    cost -= item.cost;
    return item;
  }
};

double Costliest(const std::vector<Bin>& bins) {
  double most = 0;
  for (const Bin& bin : bins) most = std::max(most, bin.cost);
  return most;
}

// Moves items on and in. Returns false if samples are left that fit nowhere.
bool Level(const LoadMeter& meter, std::vector<Bin>* bins) {
  double mean = 0;
  for (const Bin& bin : *bins) mean += bin.cost;
  mean /= static_cast<double>(bins->size());
  std::vector<Item> waiting;
  const auto fits = [&](const Bin& bin, const Item& item) {
    Load sum = bin.load;
    sum += item.load;
    return meter.Fits(sum);
  };
  for (size_t b = 0; b < bins->size(); ++b) {
    Bin& bin = (*bins)[b];
    // Hands on items while that brings it nearer to the mean.
    while (b + 1 < bins->size() && bin.items.size() > 1 && bin.cost > mean) {
      size_t best = bin.items.size();
      double nearest = bin.cost - mean;
      for (size_t i = 0; i < bin.items.size(); ++i) {
        const double distance = std::abs(bin.cost - bin.items[i].cost - mean);
        if (distance < nearest) {
          nearest = distance;
          best = i;
        }
      }
      if (best == bin.items.size()) break;
      waiting.push_back(bin.Take(best));
    }
    // Takes waiting items, the costly first.
    std::stable_sort(
        waiting.begin(), waiting.end(),
        [](const Item& x, const Item& y) { return x.cost > y.cost; });
    std::vector<Item> left;
    for (const Item& item : waiting) {
      const bool nearer =
          std::abs(bin.cost + item.cost - mean) < std::abs(bin.cost - mean);
      // It does not take back what it has just handed on, as that is not
      // nearer.
      if (fits(bin, item) && nearer) {
        bin.Add(item);
      } else {
        left.push_back(item);
      }
    }
    waiting = std::move(left);
  }
  for (const Item& item : waiting) {
    Bin* best = nullptr;
    for (Bin& bin : *bins) {
      if (!fits(bin, item)) continue;
      if (best == nullptr || bin.cost < best->cost) best = &bin;
    }
    if (best == nullptr) return false;
    best->Add(item);
  }
  return true;
}

}  // namespace

PackedStep DeferSurplus(const JobSpec& job, const SampleCosts& costs,
                        const PackedStep& step) {
  const LoadMeter meter(job);
  PackedStep deferred = step;
  for (auto& replica : deferred.packed) {
    if (replica.size() < 2) continue;
    std::vector<Bin> bins(replica.size());
    for (size_t b = 0; b < replica.size(); ++b) {
      for (const SampleId id : replica[b]) {
        const SampleMetadata& sample = step.samples.samples[id];
        Item item{.id = id, .load = meter.Of(sample)};
        for (const int64_t cost : costs.Of(job.model, sample)) {
          item.cost += static_cast<double>(cost);
        }
        bins[b].Add(item);
      }
    }
    const double before = Costliest(bins);
    if (!Level(meter, &bins) || Costliest(bins) > before) continue;
    for (size_t b = 0; b < replica.size(); ++b) {
      replica[b].clear();
      for (const Item& item : bins[b].items) replica[b].push_back(item.id);
      std::sort(replica[b].begin(), replica[b].end());
    }
  }
  return deferred;
}

}  // namespace pipeloom::partition
