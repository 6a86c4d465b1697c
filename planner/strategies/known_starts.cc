#include "planner/strategies/known_starts.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/status_macros.h"
#include "planner/bounds/lower_bound.h"
#include "planner/core/memory_feasibility.h"
#include "planner/memory/choose_memory.h"
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
#include "planner/strategies/starts/start_offers.h"

namespace pipeloom::planner {
namespace {

// Number of orders, those with the best rough choices, that get a thorough
// choice.
constexpr size_t kThorough = 2;

bool SplitsBackward(const StageGraph& graph) {
  return std::any_of(graph.tasks().begin(), graph.tasks().end(),
                     [](const Task& t) { return t.pass == Pass::kWeightGrad; });
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
    StartOffers offers(graph, memory, lent_, budget);
    const bool is_first = good_.empty();
    PIPELOOM_RETURN_IF_ERROR(is_first
                                 ? OfferAll(graph, partition, seed, &offers)
                                 : OfferGood(partition, &offers));
    if (budget.Abandoned()) return absl::CancelledError("stopped");
    if (offers.empty()) offers.OfferForLeastMemory();
    if (offers.empty()) {
      return absl::ResourceExhaustedError(
          "none of the known orders fits with any memory choice tried");
    }
    offers.Sort();
    if (is_first) {
      offers.ChooseThoroughly(kThorough);
      good_ = offers.Best(kThorough);
    }
    MemorySchedule made;
    made.instead = offers.Instead();
    KnownStart best = offers.TakeFirst();
    made.selection = std::move(best.selection);
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(graph, memory, made.selection));
    PIPELOOM_ASSIGN_OR_RETURN(made.found.schedule,
                              TimeSchedule(chosen, std::move(best.orders)));
    PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(chosen, made.found.schedule));
    made.found.lower_bound = LowerBound(graph);
    made.found.evaluations = offers.evaluations();
    made.found.proven_optimal =
        made.found.schedule.step_time() == made.found.lower_bound;
    return made;
  }

 private:
  absl::Status OfferAll(const StageGraph& graph, const Partition& partition,
                        uint64_t seed, StartOffers* offers) const {
    PIPELOOM_RETURN_IF_ERROR(offers->OfferLent());
    // There may be no time for them after the segments of a large step, whose
    // orders they may be better than. Where a similar step tells more, they
    // were tried for that.
    std::vector<RankOrders> first;
    if (!MemoryIsShort(offers->flat())) {
      first = KnownOrders(graph, partition);
    } else if (offers->empty() &&
               (MicrobatchesAreAlike(graph) || IsVee(partition))) {
      first = EarlyOrders(graph, partition);
    }
    for (const RankOrders& orders : first) offers->Offer(orders);
    PIPELOOM_RETURN_IF_ERROR(offers->OfferSegments(partition, segments_, seed));
    // Making them takes long on large steps.
    if (!offers->empty() && offers->Exhausted()) return absl::OkStatus();
    for (RankOrders& orders : KnownOrders(graph, partition)) {
      if (std::find(first.begin(), first.end(), orders) == first.end()) {
        offers->Offer(std::move(orders));
      }
    }
    return absl::OkStatus();
  }

  // With choices of an earlier call to go on from, rough ones add nothing.
  absl::Status OfferGood(const Partition& partition,
                         StartOffers* offers) const {
    for (size_t i = 0; i < good_.size(); ++i) {
      if (i >= kThorough && !offers->empty()) break;
      PIPELOOM_RETURN_IF_ERROR(offers->OfferAgain(good_[i], partition));
    }
    return absl::OkStatus();
  }

  SearchBudget segments_;
  std::vector<LentStep> lent_;
  // The best of the first call, the best first. After kThorough of them, one
  // for the case that none of them fits: classic orders that no longer fit
  // cannot be made again, then the best order of segments is.
  std::vector<KnownStart> good_{};
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
