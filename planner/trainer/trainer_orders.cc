#include "planner/trainer/trainer_orders.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "planner/bounds/lower_bound.h"
#include "planner/core/flat_graph.h"
#include "planner/moves/order_search.h"
#include "planner/moves/relabel_search.h"
#include "planner/orders/classic_orders.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/trainer/cell_graph.h"

namespace pipeloom::planner {
namespace {

// Shares of the budget until which places of microbatches are searched, and
// then the order.
constexpr double kPlacesUntil = 0.3;
constexpr double kOrderUntil = 0.9;
constexpr double kTemperature = 0.5;  // At first; in mean durations.
// Exchanges between two looks at the budget, and those that take as long as an
// evaluation of the search.
constexpr int64_t kExchanges = 24;
constexpr int64_t kExchangesOfOne = 8;

size_t At(int32_t i) { return static_cast<size_t>(i); }

class OrderSearch {
 public:
  OrderSearch(const StageGraph& cells, const TrainerLimits& trainer,
              uint64_t seed)
      : cells_(cells),
        trainer_(trainer),
        one_loss_(trainer.one_loss || IsPlain(trainer, cells.num_ranks())),
        flat_(cells),
        seed_(seed),
        random_(seed) {
    for (const Task& task : cells.tasks()) {
      num_cells_ = std::max(num_cells_, task.stage.value() + 1);
    }
  }

  absl::StatusOr<SearchResult> Run(const SearchBudget& budget,
                                   const RankOrders& start) {
    if (start.size() == cells_.num_ranks()) {
      Offer(start);
      ++evaluations_;
    }
    PIPELOOM_RETURN_IF_ERROR(TryTemplates(budget));
    const bool stock = trainer_.order == PassOrder::kStock;
    if (best_time_ == kNoLimit && !stock) {
      SearchBudget first = budget;
      first.max_evaluations = 1;
      PIPELOOM_RETURN_IF_ERROR(SearchOrder(first));
    }
    if (best_time_ == kNoLimit) {
      return shortage_.ok() ? absl::ResourceExhaustedError("no order was found")
                            : shortage_;
    }
    if (!budget.Exhausted(evaluations_)) {
      SearchPlaces(Part(budget, stock ? 1 : kPlacesUntil));
    }
    if (!stock && !budget.Exhausted(evaluations_)) {
      PIPELOOM_RETURN_IF_ERROR(SearchOrder(Part(budget, kOrderUntil)));
      if (!budget.Exhausted(evaluations_)) SearchPlaces(Part(budget, 1));
    }
    SearchResult result;
    PIPELOOM_ASSIGN_OR_RETURN(result.schedule, TimeSchedule(cells_, best_));
    PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(cells_, result.schedule));
    result.evaluations = evaluations_;
    result.lower_bound = LowerBound(cells_);
    result.proven_optimal = result.schedule.step_time() == result.lower_bound;
    return result;
  }

 private:
  SearchBudget Part(const SearchBudget& budget, double share) const {
    SearchBudget part = budget.PartUntil(share, evaluations_);
    part.max_evaluations = std::max<int64_t>(1, part.max_evaluations);
    return part;
  }

  // Keeps orders of the cells that are legal, fit and are the best so far.
  void Offer(RankOrders orders) {
    absl::StatusOr<Schedule> schedule = TimeSchedule(cells_, std::move(orders));
    if (!schedule.ok()) return;
    for (const RankId r : cells_.rank_ids()) {
      const Bytes limit = cells_.rank(r).memory.limit;
      if (limit == Bytes(0) || schedule->peak[r] <= limit) continue;
      if (shortage_.ok()) {
        shortage_ = absl::ResourceExhaustedError(absl::StrFormat(
            "rank %d needs %s; its limit is %s", r.value(),
            FormatBytes(schedule->peak[r]), FormatBytes(limit)));
      }
      return;
    }
    const int64_t time = schedule->step_time().count();
    if (time >= best_time_) return;
    if (trainer_.order == PassOrder::kOneForwardOrder &&
        !HasOneForwardOrder(cells_, schedule->order)) {
      return;
    }
    if (one_loss_ && !HasOneLoss(cells_, schedule->order)) return;
    best_time_ = time;
    best_ = std::move(schedule->order);
  }

  absl::StatusOr<std::vector<RankOrders>> Templates() const {
    if (trainer_.order != PassOrder::kStock) return ClassicOrders(cells_);
    PIPELOOM_ASSIGN_OR_RETURN(RankOrders stock,
                              StockOrders(VirtualPipeline(cells_)));
    return std::vector<RankOrders>{std::move(stock)};
  }

  // Returns orders in which microbatches may go: as they are, and by work.
  std::vector<std::vector<int32_t>> MicrobatchOrders() const {
    std::vector<Duration> work;
    for (const Task& task : cells_.tasks()) {
      const size_t m = At(task.microbatch.value());
      if (work.size() <= m) work.resize(m + 1);
      work[m] += task.duration;
    }
    std::vector<int32_t> as_is(work.size());
    std::iota(as_is.begin(), as_is.end(), 0);
    std::vector<std::vector<int32_t>> all = {as_is};
    const auto [least, most] = std::minmax_element(work.begin(), work.end());
    if (work.empty() || *least == *most) return all;
    std::vector<int32_t> falling = as_is;
    std::stable_sort(falling.begin(), falling.end(), [&](int32_t a, int32_t b) {
      return work[At(a)] > work[At(b)];
    });
    all.push_back(falling);
    all.emplace_back(falling.rbegin(), falling.rend());
    // The smallest first, as it fills the pipeline soonest.
    std::rotate(falling.begin(), falling.end() - 1, falling.end());
    all.push_back(falling);
    return all;
  }

  // Returns orders with microbatch `places[i]` in the place of microbatch i.
  RankOrders Placed(const RankOrders& orders,
                    const std::vector<int32_t>& places) const {
    RankOrders placed = orders;
    for (auto& order : placed) {
      for (TaskId& t : order) {
        const Task& task = cells_.task(t);
        t = slot_[SlotOf(task.stage.value(),
                         places[At(task.microbatch.value())], task.pass)];
      }
    }
    return placed;
  }
  size_t SlotOf(int32_t cell, int32_t microbatch, Pass pass) const {
    return (At(microbatch) * At(num_cells_) + At(cell)) * 3 +
           static_cast<size_t>(pass);
  }

  absl::Status TryTemplates(const SearchBudget& budget) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::vector<RankOrders> templates,
                              Templates());
    const auto orders = MicrobatchOrders();
    slot_.resize(orders.front().size() * At(num_cells_) * 3);
    for (const TaskId t : cells_.task_ids()) {
      const Task& task = cells_.task(t);
      slot_[SlotOf(task.stage.value(), task.microbatch.value(), task.pass)] = t;
    }
    for (const std::vector<int32_t>& places : orders) {
      for (const RankOrders& made : templates) {
        // All classic orders are tried once, whatever the budget.
        if (best_time_ < kNoLimit && &places != &orders.front() &&
            budget.Exhausted(evaluations_)) {
          return absl::OkStatus();
        }
        Offer(Placed(made, places));
        ++evaluations_;
      }
    }
    return absl::OkStatus();
  }

  // Exchanges microbatches of the best order.
  void SearchPlaces(const SearchBudget& budget) {
    const OrderUnits units(cells_);
    RelabelSearch relabels(flat_, units);
    if (!relabels.can_move()) return;
    const std::vector<int32_t> sequence = Linearize(flat_, best_);
    if (sequence.empty()) return;
    relabels.Start(sequence);
    const double mean =
        static_cast<double>(std::accumulate(flat_.duration.begin(),
                                            flat_.duration.end(), int64_t{0})) /
        static_cast<double>(std::max(1, flat_.num_tasks));
    int64_t tried = 0;
    while (!budget.Exhausted(tried)) {
      const double used = budget.spent
                              ? budget.spent()
                              : static_cast<double>(tried) /
                                    static_cast<double>(budget.max_evaluations);
      const double left = std::max(0.0, 1 - used);
      relabels.Run(kExchanges, kTemperature * mean * left * left, 0, random_);
      tried += kExchanges / kExchangesOfOne;
    }
    evaluations_ += tried;
    Offer(OrdersOf(flat_, relabels.best_sequence()));
  }

  // Searches the order of tasks; that of microbatches stays if stages must have
  // one.
  absl::Status SearchOrder(const SearchBudget& budget) {
    const bool in_order =
        one_loss_ || trainer_.order == PassOrder::kOneForwardOrder;
    const std::vector<int32_t> microbatches = in_order && best_time_ < kNoLimit
                                                  ? ForwardOrder(cells_, best_)
                                                  : std::vector<int32_t>{};
    IdVector<StageId, int32_t> same(num_cells_);
    for (const StageId s : same.ids()) same[s] = s.value();
    PIPELOOM_ASSIGN_OR_RETURN(
        const CellGraph cells,
        MakeCells(cells_, same, microbatches,
                  {.forwards = in_order, .one_loss = trainer_.one_loss}));
    RankOrders start;
    if (best_time_ < kNoLimit) start = CellsOf(cells, best_);
    const absl::StatusOr<SearchResult> found =
        SearchGraph(cells.graph, seed_, budget, start);
    if (absl::IsResourceExhausted(found.status())) {
      shortage_ = found.status();
      return absl::OkStatus();
    }
    PIPELOOM_RETURN_IF_ERROR(found.status());
    evaluations_ += std::max<int64_t>(1, found->evaluations);
    Offer(PartsOf(cells, found->schedule.order));
    return absl::OkStatus();
  }

  const StageGraph& cells_;
  const TrainerLimits& trainer_;
  const bool one_loss_;
  const FlatGraph flat_;
  const uint64_t seed_;
  Random random_;
  int32_t num_cells_ = 0;
  std::vector<TaskId> slot_{};  // Tasks by cell, microbatch and pass.
  int64_t evaluations_ = 0;
  int64_t best_time_ = kNoLimit;
  RankOrders best_{};
  absl::Status shortage_;  // Why the first order that was tried does not fit.
};

}  // namespace

absl::StatusOr<SearchResult> SearchTrainerOrder(const StageGraph& cells,
                                                const TrainerLimits& trainer,
                                                uint64_t seed,
                                                const SearchBudget& budget,
                                                const RankOrders& start) {
  return OrderSearch(cells, trainer, seed).Run(budget, start);
}

}  // namespace pipeloom::planner
