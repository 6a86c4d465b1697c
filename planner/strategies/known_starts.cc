#include "planner/strategies/known_starts.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "planner/bounds/lower_bound.h"
#include "planner/bounds/plan_bound.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_feasibility.h"
#include "planner/memory/choose_memory.h"
#include "planner/memory/memory_levels.h"
#include "planner/orders/classic_orders.h"
#include "planner/orders/dual_pipe_v.h"
#include "planner/orders/gpipe.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/v_schedule.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/orders/weight_grad_room.h"
#include "planner/orders/zero_bubble_h1.h"
#include "planner/orders/zero_bubble_v.h"
#include "planner/strategies/disttrain.h"
#include "planner/strategies/optimus.h"
#include "planner/strategies/starts/lent_starts.h"
#include "planner/strategies/starts/segment_starts.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;

// Number of orders, those with the best rough choices, that get a thorough
// choice.
constexpr size_t kThorough = 2;
// Number of answers that are kept for the case that the best one does not fit.
constexpr size_t kMostInstead = 8;
// Options of the rough choice.
constexpr ChooseMemoryOptions kRough = {.rounds = 2, .program = kRoughProgram};
// Shares of the way from keeping everything to min-memory at which orders of
// segments are made that have to fit where little memory is left.
constexpr double kLeast[] = {1};

bool SplitsBackward(const StageGraph& graph) {
  return std::any_of(graph.tasks().begin(), graph.tasks().end(),
                     [](const Task& t) { return t.pass == Pass::kWeightGrad; });
}

// Shares of the memory that orders for the least memory may take, as no choice
// has both the least that is held and the least peak of all.
constexpr double kLeastShares[] = {1, 0.9, 0.8};

// Returns the list schedule for the least memory that any choices take, within
// a share of the room of each rank; none if some microbatch alone does not fit.
RankOrders ForLeastMemory(const FlatGraph& least, double share) {
  ListScheduler scheduler(least);
  if (!scheduler.CanRun()) return {};
  std::vector<int64_t> capacity;
  for (const int64_t bytes : least.capacity) {
    capacity.push_back(
        bytes < 0 ? bytes
                  : static_cast<int64_t>(share * static_cast<double>(bytes)));
  }
  scheduler.Run({.prefer = Prefer::kAlternate, .capacity = capacity});
  return OrdersOf(least, scheduler.sequence());
}

// Returns orders that run groups one after another, which takes the least
// memory.
RankOrders OneByOne(const FlatGraph& least) {
  const FeasibilityResult decided = DecideFeasibility(least);
  if (decided.verdict != Feasibility::kLegal) return {};
  return OrdersOf(least, decided.sequence);
}

}  // namespace

bool IsVee(const Partition& partition) {
  if (partition.num_segments != 2) return false;
  RankId first_of[2];
  for (const Stage& stage : partition.stages) {
    RankId& first = first_of[stage.segment.value()];
    if (first.is_none()) first = stage.rank;
  }
  return partition.num_ranks > 1 &&
         first_of[1] == RankId(partition.num_ranks - 1);
}

std::vector<RankOrders> KnownOrders(const StageGraph& graph,
                                    const Partition& partition) {
  std::vector<RankOrders> all;
  if (graph.num_tasks() == 0) return all;
  const VirtualPipeline pipeline(graph, partition);
  const bool splits = SplitsBackward(graph);
  const auto add = [&](absl::StatusOr<RankOrders> orders) {
    if (!orders.ok()) return;
    if (std::find(all.begin(), all.end(), *orders) != all.end()) return;
    all.push_back(*std::move(orders));
  };
  const auto add_split = [&](absl::StatusOr<RankOrders> orders) {
    if (!orders.ok()) return;
    RankOrders with_room = *orders;
    MakeRoomByWeightGrads(graph, &with_room);
    add(std::move(with_room));
    add(std::move(orders));
  };
  if (pipeline.num_segments() == 1) {
    add(OneFOneBOrders(pipeline));
    add(DistTrainOrders(pipeline));
  } else {
    add(InterleavedOrders(pipeline));
    add(OptimusOrders(graph, partition));
  }
  if (splits && pipeline.num_segments() == 1) {
    add_split(ZeroBubbleH1Orders(pipeline));
  }
  if (IsVee(partition)) {
    add_split(ZeroBubbleVOrders(pipeline));
    add_split(DualPipeVOrders(pipeline));
    add_split(VScheduleOrders(VMemory::kHalf, pipeline));
    add_split(VScheduleOrders(VMemory::kMin, pipeline));
  }
  add(GPipeOrders(pipeline));
  return all;
}

std::vector<RankOrders> EarlyOrders(const StageGraph& graph,
                                    const Partition& partition) {
  std::vector<RankOrders> first;
  if (graph.num_tasks() == 0) return first;
  const VirtualPipeline pipeline(graph, partition);
  RankOrders last = GPipeOrders(pipeline);
  if (FitsWithEverythingKept(graph, last)) first.push_back(std::move(last));
  absl::StatusOr<RankOrders> orders =
      pipeline.num_segments() == 1 ? OneFOneBOrders(pipeline)
      : IsVee(partition)           ? DualPipeVOrders(pipeline)
                                   : InterleavedOrders(pipeline);
  if (orders.ok()) first.push_back(*std::move(orders));
  return first;
}

class KnownStarts::Tried {
 public:
  Tried(SearchBudget segments, std::vector<LentStep> lent)
      : segments_(std::move(segments)), lent_(std::move(lent)) {}

  // Makes the best of all starts, or of those that were best in the first call.
  absl::StatusOr<MemorySchedule> Make(const StageGraph& graph,
                                      const partition::StepMemory& memory,
                                      const Partition& partition, uint64_t seed,
                                      const SearchBudget& budget) {
    evaluations_ = 0;
    std::vector<Start> starts;
    MemoryChooser chooser(graph, memory);
    const FlatGraph flat(graph);
    SearchBudget heard;  // Rounds are not counted, but end with the time.
    heard.expired = budget.expired;
    heard.stop = budget.stop;
    heard.needs_answer = budget.needs_answer;
    heard.threads = budget.threads;
    const auto choose = [&](const ChooseMemoryOptions& options, Start* start) {
      const absl::StatusOr<int64_t> time =
          chooser.Choose(start->orders, start->selection, heard, options);
      evaluations_ += std::max<int64_t>(1, chooser.evaluations());
      if (!time.ok() || *time >= start->time) return;
      start->time = *time;
      start->selection = chooser.selection();
    };
    // Returns whether it fits.
    const auto offer_start = [&](Start start,
                                 const ChooseMemoryOptions& options) {
      if (budget.Abandoned() ||
          (!starts.empty() && budget.Exhausted(evaluations_))) {
        return false;
      }
      if (Linearize(flat, start.orders).empty()) return false;
      start.time = kNoLimit;
      choose(options, &start);
      const bool fits = start.time < kNoLimit;
      if (fits) starts.push_back(std::move(start));
      return fits;
    };
    const auto offer = [&](RankOrders orders) {
      offer_start({{.orders = std::move(orders)}}, kRough);
    };
    // Orders the segments of a start for the choices of a level, which fit that
    // order. Returns whether there is one.
    const auto order_again =
        [&](Start start, const MemorySelection& level) -> absl::StatusOr<bool> {
      start.level = start.selection = level;
      PIPELOOM_ASSIGN_OR_RETURN(start.orders,
                                OrdersWithin(graph, memory, start));
      return !start.orders.empty() && offer_start(std::move(start), {});
    };
    std::vector<RankOrders> first;  // Offered before the segments.
    if (good_.empty()) {
      PIPELOOM_ASSIGN_OR_RETURN(
          LentStarts lent,
          MakeLentStarts(graph, memory, lent_, budget.threads));
      evaluations_ += lent.evaluations;
      for (LentStart& start : lent.starts) {
        starts.push_back(Lent(std::move(start)));
      }
      // There may be no time for them after the segments of a large step, whose
      // orders they may be better than. Where a similar step tells more, they
      // were tried for that.
      if (!MemoryIsShort(flat)) {
        first = KnownOrders(graph, partition);
      } else if (starts.empty() &&
                 (MicrobatchesAreAlike(graph) || IsVee(partition))) {
        first = EarlyOrders(graph, partition);
      }
      for (const RankOrders& orders : first) offer(orders);
      PIPELOOM_RETURN_IF_ERROR(
          OfferSegments(graph, memory, partition, seed, budget, &starts));
    }
    if (good_.empty()) {
      // Making them takes long on large steps.
      if (starts.empty() || !budget.Exhausted(evaluations_)) {
        for (RankOrders& orders : KnownOrders(graph, partition)) {
          if (std::find(first.begin(), first.end(), orders) == first.end()) {
            offer(std::move(orders));
          }
        }
      }
    } else {
      // With choices of an earlier call to go on from, rough ones add nothing.
      for (size_t i = 0; i < good_.size(); ++i) {
        if (i >= kThorough && !starts.empty()) break;
        const Start& start = good_[i];
        if (start.lent.has_value()) {
          PIPELOOM_ASSIGN_OR_RETURN(
              LentStart again,
              LentStartWithin(graph, memory, lent_, *start.lent));
          ++evaluations_;
          if (again.time < kNoLimit) starts.push_back(Lent(std::move(again)));
          continue;
        }
        if (offer_start(start, {}) || !start.has_level()) continue;
        PIPELOOM_ASSIGN_OR_RETURN(const bool fits,
                                  order_again(start, start.level));
        if (fits) continue;
        for (const MemorySelection& level :
             MemoryLevels(memory, partition, kLeast)) {
          PIPELOOM_ASSIGN_OR_RETURN(const bool lean_fits,
                                    order_again(start, level));
          if (lean_fits) break;
        }
      }
    }
    if (budget.Abandoned()) return absl::CancelledError("stopped");
    if (starts.empty()) {
      const FlatGraph least = LeastMemory(graph, memory);
      for (const double share : kLeastShares) {
        if (starts.empty()) offer(ForLeastMemory(least, share));
      }
      if (starts.empty()) offer(OneByOne(least));
    }
    if (starts.empty()) {
      return absl::ResourceExhaustedError(
          "none of the known orders fits with any memory choice tried");
    }
    const auto sort = [&] {
      std::stable_sort(
          starts.begin(), starts.end(),
          [](const Start& a, const Start& b) { return a.time < b.time; });
    };
    sort();
    if (good_.empty()) {
      for (size_t i = 0; i < std::min(kThorough, starts.size()); ++i) {
        if (starts[i].lent.has_value()) continue;  // Costs more than it gains.
        if (!budget.Exhausted(evaluations_)) choose({}, &starts[i]);
      }
      sort();
      good_.assign(starts.begin(),
                   starts.begin() + std::min(kThorough, starts.size()));
      // Classic orders that no longer fit cannot be made again. Then the best
      // order of segments is.
      const auto has_level = [](const Start& s) { return s.has_level(); };
      if (std::none_of(good_.begin(), good_.end(), has_level)) {
        const auto next = std::find_if(starts.begin(), starts.end(), has_level);
        if (next != starts.end()) good_.push_back(*next);
      }
    }
    std::vector<ChosenOrders> instead = Instead(starts);
    MemorySchedule made{.selection = std::move(starts[0].selection),
                        .instead = std::move(instead)};
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(graph, memory, made.selection));
    PIPELOOM_ASSIGN_OR_RETURN(
        made.found.schedule, TimeSchedule(chosen, std::move(starts[0].orders)));
    PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(chosen, made.found.schedule));
    made.found.lower_bound = LowerBound(graph);
    made.found.evaluations = evaluations_;
    made.found.proven_optimal =
        made.found.schedule.step_time() == made.found.lower_bound;
    return made;
  }

 private:
  struct Start : SegmentStart {
    std::optional<LentStart> lent{};  // Without orders.
  };

  // Returns what may fit if the first start does not: the others, and orders
  // with the choices of the level that they were made with, which leave more
  // memory free than those that were then chosen for them; the shortest first.
  static std::vector<ChosenOrders> Instead(const std::vector<Start>& starts) {
    struct Other {
      int64_t time = 0;
      const Start* start = nullptr;
      const MemorySelection* selection = nullptr;
    };
    std::vector<Other> others;
    for (const Start& start : starts) {
      if (start.orders.empty()) continue;  // Lent by a step.
      if (&start != &starts[0]) {
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

  // Returns the start with the choices of its step.
  Start Lent(LentStart lent) const {
    Start start;
    start.time = lent.time;
    start.orders = std::exchange(lent.orders, {});
    start.selection = lent_[lent.step].selection;
    start.lent = std::move(lent);
    return start;
  }

  absl::Status OfferSegments(const StageGraph& graph,
                             const partition::StepMemory& memory,
                             const Partition& partition, uint64_t seed,
                             const SearchBudget& whole,
                             std::vector<Start>* starts) {
    if (segments_.max_evaluations < 1) return absl::OkStatus();
    SearchBudget part = segments_;
    part.stop = whole.stop;
    part.needs_answer = whole.needs_answer;
    std::vector<MemorySelection> levels =
        MemoryIsShort(FlatGraph(graph)) ? StartLevels(graph, memory, partition)
                                        : std::vector{memory.KeepEverything()};
    PIPELOOM_ASSIGN_OR_RETURN(
        SegmentStarts found,
        FindSegmentStarts(
            graph, memory, levels,
            lent_.empty() ? absl::Span<const double>() : lent_.front().times,
            seed, part));
    evaluations_ += found.evaluations;
    for (SegmentStart& start : found.starts) {
      starts->push_back({std::move(start)});
    }
    return absl::OkStatus();
  }

  SearchBudget segments_;
  std::vector<LentStep> lent_;
  int64_t evaluations_ = 0;
  // The best of the first call, the best first. After kThorough of them, one
  // for the case that none of them fits.
  std::vector<Start> good_{};
};

KnownStarts::KnownStarts(absl::string_view name, SearchBudget segments,
                         std::vector<LentStep> lent)
    : name_(name),
      tried_(std::make_unique<Tried>(std::move(segments), std::move(lent))) {}
KnownStarts::~KnownStarts() = default;

absl::StatusOr<Partition> KnownStarts::MakePartition(
    const emulator::StageCostModel&, const BatchMetadata&,
    const std::stop_token&) const {
  return absl::UnimplementedError(
      "known starts have no partition of their own");
}

absl::StatusOr<SearchResult> KnownStarts::MakeSchedule(
    const StageGraph&, const Partition&, uint64_t, const SearchBudget&) const {
  return absl::UnimplementedError("known starts choose memory too");
}

absl::StatusOr<MemorySchedule> KnownStarts::MakeMemorySchedule(
    const StageGraph& graph, const partition::StepMemory& memory,
    const Partition& partition, uint64_t seed,
    const SearchBudget& budget) const {
  return tried_->Make(graph, memory, partition, seed, budget);
}

}  // namespace pipeloom::planner
