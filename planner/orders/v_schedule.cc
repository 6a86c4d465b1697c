#include "planner/orders/v_schedule.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "absl/strings/str_format.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kPeriod = 6;  // Number of slots: F, B and W of two chunks.

// The legs of a microbatch's way, in order, and all weight gradients.
enum Leg { kForwardDown, kForwardUp, kBackwardDown, kBackwardUp, kWeight };
constexpr int kWayLegs = 4;
constexpr int kLegs = 5;

// Indexed by leg: the slot of each microbatch on one rank. For kWeight the slot
// of the k-th backward's weight gradient, or nothing while weight gradients
// have no slots.
using RankSlots = std::array<std::vector<int32_t>, kLegs>;

struct Entry {
  int32_t slot = 0;
  int32_t rank = 0;
  int leg = 0;
  int32_t index = 0;
  auto Key() const { return std::tie(slot, rank, leg, index); }
};

size_t At(int32_t i) { return static_cast<size_t>(i); }

// Returns the block's first slot on each leg. With these offsets, repetitions
// every six slots do not collide.
std::array<int32_t, kWayLegs> Block(VMemory memory, int32_t p, int32_t r) {
  if (memory == VMemory::kMin) {
    const int32_t gap = p % 3 == 0 ? 2 : 0;
    return {r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1};
  }
  const int32_t gap = p % 2 == 0 ? 3 : 0;
  return {2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2};
}

// Returns the leg in each slot of a rank, or -1.
std::vector<int8_t> Table(const RankSlots& slots) {
  int32_t last = 0;
  for (const auto& leg : slots) {
    if (!leg.empty()) last = std::max(last, leg.back());
  }
  std::vector<int8_t> table(At(last) + 1, -1);
  for (int leg = 0; leg < kLegs; ++leg) {
    for (const int32_t slot : slots[At(leg)]) {
      table[At(slot)] = static_cast<int8_t>(leg);
    }
  }
  return table;
}

// Returns the most activations held at once. If weight gradients have no slots,
// every free slot counts as one for a weight gradient that is due.
int32_t PeakHeld(const RankSlots& slots) {
  const bool in_free_slots = slots[kWeight].empty();
  int32_t held = 0;
  int32_t peak = 0;
  int32_t due = 0;
  for (const int8_t leg : Table(slots)) {
    if (leg == kForwardDown || leg == kForwardUp) {
      peak = std::max(peak, ++held);
    } else if (leg == kBackwardDown || leg == kBackwardUp) {
      ++due;
    } else if (leg == kWeight) {
      --held;
    } else if (in_free_slots && due > 0) {
      --due;
      --held;
    }
  }
  return peak;
}

// Gives every weight gradient the first free slot after its backward that no
// earlier one has taken.
void AddWeights(RankSlots* slots) {
  std::vector<int32_t>& weights = (*slots)[kWeight];
  weights.clear();
  const std::vector<int8_t> table = Table(*slots);
  int32_t due = 0;
  auto slot = static_cast<int32_t>(table.size());
  for (int32_t s = 0; s < slot; ++s) {
    const int8_t leg = table[At(s)];
    if (leg == kBackwardDown || leg == kBackwardUp) {
      ++due;
    } else if (leg < 0 && due > 0) {
      weights.push_back(s);
      --due;
    }
  }
  for (; due > 0; --due) weights.push_back(slot++);
}

// Returns all passes by slot, then rank: a topological sequence.
std::vector<Entry> Sequence(const std::vector<RankSlots>& ranks) {
  std::vector<Entry> entries;
  for (int32_t r = 0; r < static_cast<int32_t>(ranks.size()); ++r) {
    for (int leg = 0; leg < kLegs; ++leg) {
      const auto& slots = ranks[At(r)][At(leg)];
      for (int32_t i = 0; i < static_cast<int32_t>(slots.size()); ++i) {
        entries.push_back({slots[At(i)], r, leg, i});
      }
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.Key() < b.Key(); });
  return entries;
}

// Returns the first slot after everything that the pass follows: its input, and
// the same leg's microbatch before.
int32_t Earliest(const std::vector<RankSlots>& ranks, const Entry& e) {
  const RankSlots& own = ranks[At(e.rank)];
  int32_t last = -1;
  const auto after = [&](int32_t slot) { last = std::max(last, slot); };
  if (e.index > 0) after(own[At(e.leg)][At(e.index - 1)]);
  if (e.leg == kWeight) {
    std::vector<int32_t> backwards = own[kBackwardDown];
    backwards.insert(backwards.end(), own[kBackwardUp].begin(),
                     own[kBackwardUp].end());
    const auto kth = backwards.begin() + e.index;
    std::nth_element(backwards.begin(), kth, backwards.end());
    after(*kth);
    return last + 1;
  }
  const bool down = e.leg == kForwardDown || e.leg == kBackwardDown;
  const int32_t from = down ? e.rank - 1 : e.rank + 1;
  if (from >= 0 && from < static_cast<int32_t>(ranks.size())) {
    after(ranks[At(from)][At(e.leg)][At(e.index)]);
  }
  if (e.leg > 0) after(own[At(e.leg - 1)][At(e.index)]);
  return last + 1;
}

// Moves passes to earlier slots without raising the peak: at the end, once some
// rank has begun the last microbatch; and, if weight gradients have slots, also
// in the warm-up, before the first microbatch is back at rank 0.
void Squeeze(std::vector<RankSlots>* ranks) {
  const bool has_weights = !ranks->front()[kWeight].empty();
  int32_t most = 0;
  for (const RankSlots& slots : *ranks) most = std::max(most, PeakHeld(slots));
  const auto last_microbatch =
      static_cast<int32_t>(ranks->front()[kForwardDown].size()) - 1;
  std::vector<std::vector<bool>> taken;
  for (const RankSlots& slots : *ranks) taken.emplace_back(Table(slots).size());
  enum { kWarmUp, kSteady, kEnd } phase = kWarmUp;
  for (const Entry& e : Sequence(*ranks)) {
    if (phase == kWarmUp && e.leg == kBackwardUp && e.rank == 0) {
      phase = kSteady;
    }
    const bool moves = phase == kEnd || (phase == kWarmUp && has_weights);
    if (phase == kSteady && e.leg == kForwardDown &&
        e.index == last_microbatch) {
      phase = kEnd;
    }
    RankSlots& own = (*ranks)[At(e.rank)];
    int32_t& slot = own[At(e.leg)][At(e.index)];
    if (moves) {
      for (slot = Earliest(*ranks, e); slot < e.slot; ++slot) {
        if (!taken[At(e.rank)][At(slot)] && PeakHeld(own) <= most) break;
      }
    }
    taken[At(e.rank)][At(slot)] = true;
  }
}

// Runs every pass as early as its rank's order allows, in one slot each.
void RunEagerly(std::vector<RankSlots>* ranks) {
  std::vector<int32_t> free_at(ranks->size(), 0);
  for (const Entry& e : Sequence(*ranks)) {
    int32_t& slot = (*ranks)[At(e.rank)][At(e.leg)][At(e.index)];
    slot = free_at[At(e.rank)];
    // A weight gradient runs after its rank's last pass, so after its backward.
    if (e.leg != kWeight) slot = std::max(slot, Earliest(*ranks, e));
    free_at[At(e.rank)] = slot + 1;
  }
}

}  // namespace

PassPrograms VSchedulePrograms(VMemory memory, int32_t ranks,
                               int32_t microbatches) {
  std::vector<RankSlots> slots(At(ranks));
  for (int32_t r = 0; r < ranks; ++r) {
    const auto block = Block(memory, ranks, r);
    for (int leg = 0; leg < kWayLegs; ++leg) {
      for (int32_t m = 0; m < microbatches; ++m) {
        slots[At(r)][At(leg)].push_back(block[At(leg)] + m * kPeriod);
      }
    }
  }
  // First with weight gradients in their slots, then with them where they fit.
  for (const bool first : {true, false}) {
    for (RankSlots& rank : slots) {
      if (first) {
        AddWeights(&rank);
      } else {
        rank[kWeight].clear();
      }
    }
    Squeeze(&slots);
    if (!first) {
      for (RankSlots& rank : slots) AddWeights(&rank);
    }
    RunEagerly(&slots);
  }

  PassPrograms programs(ranks);
  for (const RankId r : programs.ids()) {
    RankSlots& own = slots[At(r.value())];
    own[kWeight].clear();
    AddWeights(&own);
    int32_t backwards[2] = {0, 0};  // Indexed by chunk: backwards done,
    int32_t weights[2] = {0, 0};    // and their weight gradients done.
    std::array<int32_t, kWayLegs> next{};
    for (const int8_t leg : Table(own)) {
      if (leg < 0) continue;
      if (leg == kWeight) {
        // Takes the second chunk's first, which frees the newer activation.
        const int32_t chunk = weights[1] < backwards[1] ? 1 : 0;
        programs[r].push_back({.pass = Pass::kWeightGrad,
                               .chunk = chunk,
                               .microbatch = weights[chunk]++});
        continue;
      }
      const bool forward = leg == kForwardDown || leg == kForwardUp;
      const int32_t chunk = leg == kForwardUp || leg == kBackwardDown ? 1 : 0;
      if (!forward) ++backwards[chunk];
      programs[r].push_back({.pass = forward ? Pass::kForward : Pass::kBackward,
                             .chunk = chunk,
                             .microbatch = next[At(leg)]++});
    }
  }
  return programs;
}

absl::StatusOr<RankOrders> VScheduleOrders(VMemory memory,
                                           const VirtualPipeline& pipeline) {
  if (pipeline.num_segments() > 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is for 2 segments; the pipeline has %d",
                        memory == VMemory::kHalf ? "v-half" : "v-min",
                        pipeline.num_segments()));
  }
  if (pipeline.num_ranks() == 0 || pipeline.num_microbatches() == 0) {
    return RankOrders(pipeline.num_ranks());
  }
  return ToRankOrders(pipeline, VSchedulePrograms(memory, pipeline.num_ranks(),
                                                  pipeline.num_microbatches()));
}

}  // namespace pipeloom::planner
