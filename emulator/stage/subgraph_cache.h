// Cache of prices of subgraphs by their structure: equal layers with equal
// shapes are priced once, in whichever stage, microbatch or step they are.
#ifndef PIPELOOM_EMULATOR_STAGE_SUBGRAPH_CACHE_H_
#define PIPELOOM_EMULATOR_STAGE_SUBGRAPH_CACHE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "base/fingerprint.h"
#include "base/mutex.h"
#include "base/units.h"
#include "emulator/stage/pass_scratch.h"
#include "ir/operator_group.h"

namespace pipeloom::emulator {

// Cost of one group of a layer's operators (ir/operator_group.h), or of a
// stage's.
struct GroupCost {
  Duration again{};  // Time to recompute its results.
  Bytes bytes{};     // Size of its results; part of `activations`.
  bool operator==(const GroupCost&) const = default;
};
using GroupCosts = std::array<GroupCost, kNumOperatorGroups>;

// Time and memory of one layer.
struct LayerCost {
  Duration forward{};
  // The forward inside a backward that recomputes: weights are available
  // already.
  Duration forward_again{};
  // The two forms of LayerOps. Gaps: how much other compute fits in while the
  // compute stream waits for the pass's collectives.
  Duration backward{};
  Duration backward_gap{};
  Duration weight_grad{};
  Duration fused{};
  Duration fused_gap{};
  Duration forward_gap{};
  // How much of each pass can run while another pass waits for collectives.
  Duration forward_compute{};
  Duration backward_compute{};
  Duration fused_compute{};
  Bytes activations{};
  Bytes freed_by_backward{};
  PassScratch scratch{};
  GroupCosts groups{};
  Flops forward_flops{};
  bool operator==(const LayerCost&) const = default;
};

// A thread-safe cache. `price` must be a pure function of what the key was made
// of; two threads that miss at the same time both call it, and count two
// misses. Keeps at most 16 * kMaxPerShard results.
template <typename Cost, size_t kMaxPerShard = size_t{1} << 16>
class FingerprintCache {
 public:
  // Returns the cached result of the key, or that of price().
  template <typename Price>
  Cost Get(const Fingerprint& key, const Price& price) {
    Shard& shard = shards_[key.high % kShards];
    {
      const ReaderMutexLock lock(&shard.mutex);
      if (const auto it = shard.costs.find(key); it != shard.costs.end()) {
        CountHits(1);
        return it->second;
      }
    }
    misses_.fetch_add(1, std::memory_order_relaxed);
    const Cost cost = price();
    const WriterMutexLock lock(&shard.mutex);
    // Shapes of past steps may never return; starting afresh bounds memory.
    if (shard.costs.size() >= kMaxPerShard) shard.costs.clear();
    shard.costs.emplace(key, cost);
    return cost;
  }
  // Counts results that callers reused without a look-up.
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
    SharedMutex mutex{};
    absl::flat_hash_map<Fingerprint, Cost> costs ABSL_GUARDED_BY(mutex){};
  };
  std::array<Shard, kShards> shards_{};
  std::atomic<int64_t> hits_{0};
  std::atomic<int64_t> misses_{0};
};
using SubgraphCache = FingerprintCache<LayerCost>;

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_SUBGRAPH_CACHE_H_
