// Prices of subgraphs by their structure: equal layers at equal shapes are
// priced once, whichever stage, microbatch or step they stand in.
#ifndef PIPELOOM_EMULATOR_STAGE_SUBGRAPH_CACHE_H_
#define PIPELOOM_EMULATOR_STAGE_SUBGRAPH_CACHE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "absl/container/flat_hash_map.h"
#include "base/fingerprint.h"
#include "base/units.h"
#include "ir/operator_group.h"

namespace pipeloom::emulator {

// One group of a layer's operators (ir/operator_group.h), or of a stage's.
struct GroupCost {
  Duration again{};  // To make its results again.
  Bytes bytes{};     // Of them; part of `activations`.
  bool operator==(const GroupCost&) const = default;
};
using GroupCosts = std::array<GroupCost, kNumOperatorGroups>;

struct LayerCost {
  Duration forward{};
  // The forward in a backward that recomputes: weights are there already.
  Duration forward_again{};
  // In the two forms of LayerOps. Gaps: how much other compute finds room while
  // the compute stream waits for the pass's collectives.
  Duration backward{};
  Duration backward_gap{};
  Duration weight_grad{};
  Duration fused{};
  Duration fused_gap{};
  Bytes activations{};
  Bytes freed_by_backward{};
  GroupCosts groups{};
  Flops forward_flops{};
  bool operator==(const LayerCost&) const = default;
};

// Any number of threads. `price` must be a pure function of what the key was
// made of; two threads that miss at once both call it, and count two misses.
// At most 16 * kMaxPerShard are kept.
template <typename Cost, size_t kMaxPerShard = size_t{1} << 16>
class FingerprintCache {
 public:
  template <typename Price>
  Cost Get(const Fingerprint& key, const Price& price) {
    Shard& shard = shards_[key.high % kShards];
    {
      const std::shared_lock lock(shard.mutex);
      if (const auto it = shard.costs.find(key); it != shard.costs.end()) {
        CountHits(1);
        return it->second;
      }
    }
    misses_.fetch_add(1, std::memory_order_relaxed);
    const Cost cost = price();
    const std::unique_lock lock(shard.mutex);
    // Shapes of past steps may never return; starting afresh bounds memory.
    if (shard.costs.size() >= kMaxPerShard) shard.costs.clear();
    shard.costs.emplace(key, cost);
    return cost;
  }
  // Of results that were taken again without asking.
  void CountHits(int64_t count) {
    hits_.fetch_add(count, std::memory_order_relaxed);
  }
  void CountMisses(int64_t count) {
    misses_.fetch_add(count, std::memory_order_relaxed);
  }

  int64_t hits() const { return hits_.load(std::memory_order_relaxed); }
  int64_t misses() const { return misses_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kShards = 16;
  struct Shard {
    std::shared_mutex mutex{};
    absl::flat_hash_map<Fingerprint, Cost> costs{};
  };
  std::array<Shard, kShards> shards_{};
  std::atomic<int64_t> hits_{0};
  std::atomic<int64_t> misses_{0};
};
using SubgraphCache = FingerprintCache<LayerCost>;

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_SUBGRAPH_CACHE_H_
