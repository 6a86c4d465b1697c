// The starts of one call of KnownStarts: each that is offered gets memory
// choices, and those that fit are kept.
#ifndef PIPELOOM_PLANNER_STRATEGIES_STARTS_START_OFFERS_H_
#define PIPELOOM_PLANNER_STRATEGIES_STARTS_START_OFFERS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/partition.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"
#include "planner/memory/choose_memory.h"
#include "planner/strategies/starts/lent_starts.h"
#include "planner/strategies/starts/segment_starts.h"
#include "planner/strategy.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {

struct KnownStart : SegmentStart {
  std::optional<LentStart> lent{};  // Without orders.
};

class StartOffers {
 public:
  // None of the arguments may be changed or destroyed while it is used. The
  // budget only counts once something fits.
  StartOffers(const StageGraph& graph, const partition::StepMemory& memory,
              absl::Span<const LentStep> lent, const SearchBudget& budget);

  const FlatGraph& flat() const { return flat_; }
  bool empty() const { return starts_.empty(); }
  bool Exhausted() const { return budget_.Exhausted(evaluations_); }
  int64_t evaluations() const { return evaluations_; }

  // Offers orders, which get a rough memory choice.
  void Offer(RankOrders orders);

  // Offers the starts that similar steps lend.
  absl::Status OfferLent();

  // Offers what a search for orders of segments finds within `segments`.
  absl::Status OfferSegments(const Partition& partition,
                             const SearchBudget& segments, uint64_t seed);

  // Offers a start of an earlier call, with other limits. An order of segments
  // that no longer fits is made again, at its level of memory choices or else
  // at one that takes less.
  absl::Status OfferAgain(const KnownStart& start, const Partition& partition);

  // Offers orders for the least memory, until one fits.
  void OfferForLeastMemory();

  // Sorts the starts by time, the best first.
  void Sort();

  // Gives each of the first `count` starts that no step lent a thorough memory
  // choice, as far as the budget goes, and sorts again.
  void ChooseThoroughly(size_t count);

  // Returns the first `count` starts, and one more if none of them could be
  // made again within lower limits: the best that can.
  std::vector<KnownStart> Best(size_t count) const;

  // Returns what may fit if the first start does not: the others, and orders
  // with the choices of the level that they were made with, which leave more
  // memory free than those that were then chosen for them; the shortest first.
  std::vector<ChosenOrders> Instead() const;

  // Hands out the first start.
  KnownStart TakeFirst() { return std::move(starts_.front()); }

 private:
  // Returns whether it fits with memory choices for its order.
  bool OfferStart(KnownStart start, const ChooseMemoryOptions& options);
  // Orders the segments of a start for the choices of a level, and offers it.
  // Returns whether it fits.
  absl::StatusOr<bool> OrderAgain(KnownStart start,
                                  const partition::MemorySelection& level);
  void Choose(const ChooseMemoryOptions& options, KnownStart* start);
  // Returns the start with the choices of its step.
  KnownStart Lent(LentStart lent) const;

  const StageGraph& graph_;
  const partition::StepMemory& memory_;
  absl::Span<const LentStep> lent_;
  const SearchBudget& budget_;
  SearchBudget heard_{};  // Rounds are not counted, but end with the time.
  FlatGraph flat_;
  MemoryChooser chooser_;
  int64_t evaluations_ = 0;
  std::vector<KnownStart> starts_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_STARTS_START_OFFERS_H_
