// The update of a rank: the reduce-scatter of its gradients, the optimizer step
// and the all-gather of its weights, and how much of it passes hide.
//
// Megatron-Core's distributed optimizer, FSDP and DDP reduce gradients bucket
// by bucket as the last backward of a stage makes them, and gather weights
// bucket by bucket as the first forward of the next step needs them:
//
//   rank's passes   ... | last backward  |            | first forward | ...
//   gradients              [ b0 ][ b1 ][ b2 ]
//   optimizer                                [ step ]
//   weights                                          [ w0 ][ w1 ][ w2 ]
//
// A step gets longer by the part of the reduction that is left after the last
// backward, and by the time for which first forwards wait for weights
// (step_update.h).
#ifndef PIPELOOM_EMULATOR_STAGE_RANK_UPDATE_H_
#define PIPELOOM_EMULATOR_STAGE_RANK_UPDATE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/strong_id.h"
#include "base/units.h"
#include "ir/ids.h"

namespace pipeloom::emulator {

// The times of an update, each as if nothing else ran.
struct RankUpdate {
  // Reduces all gradients: an all-reduce without sharding. 0 with ZeRO-2
  // and -3, whose passes reduce them.
  Duration reduce{};
  Duration optimizer{};
  // Gathers all weights. 0 without sharding, and with ZeRO-3, whose passes
  // gather them.
  Duration gather{};
  struct Part {
    StageId stage{};
    int64_t parameters = 0;  // Parameters on one GPU; > 0.
    int32_t buckets = 1;     // Collectives in which they are reduced; > 0.
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts{};  // Trained stages of the rank.
  // Returns the time of an update of which passes hide nothing.
  Duration total() const { return reduce + optimizer + gather; }
  bool operator==(const RankUpdate&) const = default;
};

// Returns the number of buckets of so many parameters. Each has at least
// `least`; if that is 0, 40 million and a million for each replica, as
// Megatron-Core's distributed optimizer makes them.
int32_t BucketsOf(int64_t parameters, int64_t replicas, int64_t least);

// When a pass runs, in ns.
struct PassSpan {
  int64_t begin = -1;  // -1: there is no such pass.
  int64_t end = -1;
};

// Spans of a pass of each of a rank's parts, on one replica.
using PartSpans = std::vector<PassSpan>;

// Returns when a rank's reductions end, which run one after another, those of
// the last part first: collectives of one group have to begin in one order on
// all replicas, whose passes may end in different ones. Of the n buckets of a
// part, bucket k is ready when k/n of the part's last backward is done in every
// replica. 0 if there is nothing to reduce.
// REQUIRES: each of `last` has a span for each part. O(buckets).
int64_t ReducedAt(const RankUpdate& update,
                  absl::Span<const PartSpans* const> last);

// Returns how long a rank waits for weights, whose gathers begin at time 0 and
// run part after part in the order of `parts`. A part's first forward on any
// replica needs bucket k of its n buckets when (k - 1)/n of it is done. The
// same requirement and cost.
int64_t WaitForWeights(const RankUpdate& update,
                       absl::Span<const PartSpans* const> first);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_RANK_UPDATE_H_
