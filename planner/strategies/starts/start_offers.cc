#include "planner/strategies/starts/start_offers.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "planner/bounds/plan_bound.h"
#include "planner/core/memory_feasibility.h"
#include "planner/memory/memory_levels.h"
#include "planner/strategies/starts/least_memory_orders.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;

// Number of answers that are kept for the case that the best one does not fit.
constexpr size_t kMostInstead = 8;
// Options of the rough choice.
constexpr ChooseMemoryOptions kRough = {.rounds = 2, .program = kRoughProgram};
// Shares of the way from keeping everything to min-memory at which orders of
// segments are made that have to fit where little memory is left.
constexpr double kLeast[] = {1};

}  // namespace

StartOffers::StartOffers(const StageGraph& graph,
                         const partition::StepMemory& memory,
                         absl::Span<const LentStep> lent,
                         const SearchBudget& budget)
    : graph_(graph),
      memory_(memory),
      lent_(lent),
      budget_(budget),
      flat_(graph),
      chooser_(graph, memory) {
  heard_.expired = budget.expired;
  heard_.stop = budget.stop;
  heard_.needs_answer = budget.needs_answer;
  heard_.threads = budget.threads;
}

void StartOffers::Choose(const ChooseMemoryOptions& options,
                         KnownStart* start) {
  const absl::StatusOr<int64_t> time =
      chooser_.Choose(start->orders, start->selection, heard_, options);
  evaluations_ += std::max<int64_t>(1, chooser_.evaluations());
  if (!time.ok() || *time >= start->time) return;
  start->time = *time;
  start->selection = chooser_.selection();
}

bool StartOffers::OfferStart(KnownStart start,
                             const ChooseMemoryOptions& options) {
  if (budget_.Abandoned() || (!empty() && Exhausted())) return false;
  if (Linearize(flat_, start.orders).empty()) return false;
  start.time = kNoLimit;
  Choose(options, &start);
  const bool fits = start.time < kNoLimit;
  if (fits) starts_.push_back(std::move(start));
  return fits;
}

void StartOffers::Offer(RankOrders orders) {
  OfferStart({{.orders = std::move(orders)}}, kRough);
}

absl::StatusOr<bool> StartOffers::OrderAgain(KnownStart start,
                                             const MemorySelection& level) {
  start.level = start.selection = level;
  PIPELOOM_ASSIGN_OR_RETURN(start.orders, OrdersWithin(graph_, memory_, start));
  return !start.orders.empty() && OfferStart(std::move(start), {});
}

KnownStart StartOffers::Lent(LentStart lent) const {
  KnownStart start;
  start.time = lent.time;
  start.orders = std::exchange(lent.orders, {});
  start.selection = lent_[lent.step].selection;
  start.lent = std::move(lent);
  return start;
}

absl::Status StartOffers::OfferLent() {
  PIPELOOM_ASSIGN_OR_RETURN(
      LentStarts lent, MakeLentStarts(graph_, memory_, lent_, budget_.threads));
  evaluations_ += lent.evaluations;
  for (LentStart& start : lent.starts) {
    starts_.push_back(Lent(std::move(start)));
  }
  return absl::OkStatus();
}

absl::Status StartOffers::OfferSegments(const Partition& partition,
                                        const SearchBudget& segments,
                                        uint64_t seed) {
  if (segments.max_evaluations < 1) return absl::OkStatus();
  SearchBudget part = segments;
  part.stop = budget_.stop;
  part.needs_answer = budget_.needs_answer;
  const std::vector<MemorySelection> levels =
      MemoryIsShort(flat_) ? StartLevels(graph_, memory_, partition)
                           : std::vector{memory_.KeepEverything()};
  PIPELOOM_ASSIGN_OR_RETURN(
      SegmentStarts found,
      FindSegmentStarts(
          graph_, memory_, levels,
          lent_.empty() ? absl::Span<const double>() : lent_.front().times,
          seed, part));
  evaluations_ += found.evaluations;
  for (SegmentStart& start : found.starts) {
    starts_.push_back({std::move(start)});
  }
  return absl::OkStatus();
}

absl::Status StartOffers::OfferAgain(const KnownStart& start,
                                     const Partition& partition) {
  if (start.lent.has_value()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        LentStart again, LentStartWithin(graph_, memory_, lent_, *start.lent));
    ++evaluations_;
    if (again.time < kNoLimit) starts_.push_back(Lent(std::move(again)));
    return absl::OkStatus();
  }
  if (OfferStart(start, {}) || !start.has_level()) return absl::OkStatus();
  PIPELOOM_ASSIGN_OR_RETURN(bool fits, OrderAgain(start, start.level));
  if (fits) return absl::OkStatus();
  for (const MemorySelection& level :
       MemoryLevels(memory_, partition, kLeast)) {
    PIPELOOM_ASSIGN_OR_RETURN(fits, OrderAgain(start, level));
    if (fits) break;
  }
  return absl::OkStatus();
}

void StartOffers::OfferForLeastMemory() {
  const FlatGraph least = LeastMemory(graph_, memory_);
  for (const double share : kLeastShares) {
    if (empty()) Offer(ForLeastMemory(least, share));
  }
  if (empty()) Offer(OneByOne(least));
}

void StartOffers::Sort() {
  std::stable_sort(
      starts_.begin(), starts_.end(),
      [](const KnownStart& a, const KnownStart& b) { return a.time < b.time; });
}

void StartOffers::ChooseThoroughly(size_t count) {
  for (size_t i = 0; i < std::min(count, starts_.size()); ++i) {
    if (starts_[i].lent.has_value()) continue;  // Costs more than it gains.
    if (!Exhausted()) Choose({}, &starts_[i]);
  }
  Sort();
}

std::vector<KnownStart> StartOffers::Best(size_t count) const {
  std::vector<KnownStart> best(
      starts_.begin(), starts_.begin() + static_cast<std::ptrdiff_t>(
                                             std::min(count, starts_.size())));
  const auto has_level = [](const KnownStart& s) { return s.has_level(); };
  if (std::none_of(best.begin(), best.end(), has_level)) {
    const auto next = std::find_if(starts_.begin(), starts_.end(), has_level);
    if (next != starts_.end()) best.push_back(*next);
  }
  return best;
}

std::vector<ChosenOrders> StartOffers::Instead() const {
  struct Other {
    int64_t time = 0;
    const KnownStart* start = nullptr;
    const MemorySelection* selection = nullptr;
  };
  std::vector<Other> others;
  for (const KnownStart& start : starts_) {
    if (start.orders.empty()) continue;  // Lent by a step.
    if (&start != &starts_[0]) {
      others.push_back({start.time, &start, &start.selection});
    }
    if (start.level_time < kNoLimit) {
      others.push_back({start.level_time, &start, &start.level});
    }
  }
  std::stable_sort(
      others.begin(), others.end(),
      [](const Other& a, const Other& b) { return a.time < b.time; });
  others.resize(std::min(others.size(), kMostInstead));
  std::vector<ChosenOrders> instead;
  for (const Other& other : others) {
    instead.push_back({other.start->orders, *other.selection});
  }
  return instead;
}

}  // namespace pipeloom::planner
