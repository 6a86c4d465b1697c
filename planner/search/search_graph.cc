// How a search runs:
//
// 1. The list scheduler with its default policy makes the first legal answer;
//    the classic schedules, where they apply, are tried too.
// 2. A small problem is given to branch and bound, until it is solved or a part
//    of the budget is used up.
// 3. SearchBudget::workers workers (planner/search/search_worker.h) search in
//    rounds of about equal cost. They meet after the first, second, fourth and
//    eighth and then after every eighth. After eighths they exchange answers by
//    their roles (WorkerRole): the best (on ties that of the smaller index)
//    replaces the worst of those that construct and that of all that intensify;
//    those that diversify only mix it in. When they meet earlier, it replaces
//    those of constructing workers that are far behind. Where memory is short
//    and microbatches differ, every second worker searches the step with its
//    time running backwards (planner/core/reversed_graph.h).
//
// Where the list scheduler can make no schedule, workers change one legal order
// instead (planner/search/local_search.h).
//
// The rounds and the exchange do not depend on the number of threads, and so
// neither does the result.
#include "planner/search/search_graph.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "planner/bounds/lower_bound.h"
#include "planner/construct/list_scheduler.h"
#include "planner/construct/modulo_schedule.h"
#include "planner/core/executor.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_feasibility.h"
#include "planner/core/memory_guard.h"
#include "planner/core/retime.h"
#include "planner/core/reversed_graph.h"
#include "planner/memory/smallest_limit.h"
#include "planner/moves/order_search.h"
#include "planner/orders/classic_orders.h"
#include "planner/search/exact_search.h"
#include "planner/search/local_search.h"
#include "planner/search/order_portfolio.h"
#include "planner/search/search_worker.h"

namespace pipeloom::planner {
namespace {

// Rounds between two exchanges.
constexpr int64_t kExchange = 8;
// A worker is far behind if its answer takes this many times as long as the
// best. Of 1.01 and 1.03, chosen on the 119 limited problems of 1,000 and more
// tasks of `pipeloom bench --random train:600` in 100 ms.
constexpr double kFarBehind = 1.03;
// Largest problems that are solved exactly, and limits of doing so.
constexpr int32_t kExactTasks = 40;
constexpr int64_t kMaxExactStates = 20'000;
constexpr double kExactShare = 0.5;
// On larger graphs the bound with memory takes too much of a short budget.
constexpr int32_t kMaxTasksOfBound = 20'000;

// The best answer so far.
struct Incumbent {
  int64_t time = kNoLimit;
  std::vector<int32_t> sequence{};
  int64_t evaluations = 0;
  void Offer(int64_t other_time, absl::Span<const int32_t> other) {
    if (other_time >= time) return;
    time = other_time;
    sequence.assign(other.begin(), other.end());
  }
};

// Returns the most evaluations that one of `workers` may make when all share
// `total`.
int64_t Share(int64_t total, int32_t workers, int32_t index) {
  return total / workers + (index < total % workers ? 1 : 0);
}

// A problem in the direction of time in which a worker sees it.
struct View {
  View(const StageGraph& stages, FlatGraph columns)
      : graph(std::move(columns)),
        mean(MemoryIsShort(graph) ? std::make_unique<MeanMicrobatch>(stages)
                                  : nullptr),
        units(stages),
        ideal(Idealised(stages)),
        spread(SpreadChoices(units)),
        portfolio(OrderPortfolio(graph, units)) {}

  SearchSpace Space(int64_t bound, bool warm_start, int32_t workers) const {
    return {.graph = &graph,
            .ideal = &ideal,
            .units = &units,
            .portfolio = &portfolio,
            .spread = &spread,
            .mean = mean != nullptr && mean->is_valid() ? mean.get() : nullptr,
            .is_limited = mean != nullptr,
            .bound = bound,
            .warm_start = warm_start,
            .num_workers = workers};
  }

  FlatGraph graph;
  std::unique_ptr<MeanMicrobatch> mean;
  OrderUnits units;
  FlatGraph ideal;
  std::vector<OrderChoice> spread;
  std::vector<OrderChoice> portfolio;
};

// A worker whose answers are translated to the graph's own direction of time.
class Member {
 public:
  // `epilogue`: the part of the step time (ns) that a reversed graph leaves
  // out.
  Member(const SearchSpace& space, int32_t index, uint64_t seed, bool reversed,
         int64_t epilogue)
      : space_(space),
        role_(space.RoleOf(index)),
        worker_(space_, index, seed),
        reversed_(reversed),
        epilogue_(reversed ? epilogue : 0) {}

  WorkerRole role() const { return role_; }
  int64_t best() const { return worker_.best() + epilogue_; }
  std::vector<int32_t> sequence() const {
    return reversed_ ? ReadBackwards(worker_.sequence()) : worker_.sequence();
  }
  int64_t evaluations() const { return worker_.evaluations(); }
  void Adopt(int64_t time, absl::Span<const int32_t> sequence) {
    if (reversed_) {
      worker_.Adopt(time - epilogue_, ReadBackwards(sequence));
    } else {
      worker_.Adopt(time, sequence);
    }
  }
  void Learn(int64_t time, absl::Span<const int32_t> sequence) {
    if (reversed_) {
      worker_.Learn(time - epilogue_, ReadBackwards(sequence));
    } else {
      worker_.Learn(time, sequence);
    }
  }
  void Round(int64_t limit, const SearchBudget& budget) {
    worker_.Round(limit, budget);
  }
  void Inherit(const Member& earlier) {
    if (earlier.reversed_ == reversed_) worker_.Inherit(earlier.worker_);
  }

 private:
  SearchSpace space_;
  WorkerRole role_;
  SearchWorker worker_;
  bool reversed_ = false;
  int64_t epilogue_ = 0;
};

// Returns the step with its time running backwards where every second worker
// searches it so, else null.
std::unique_ptr<View> BackwardsView(const StageGraph& graph,
                                    const FlatGraph& flat) {
  if (!MemoryIsShort(flat) || OrderUnits(graph).HasEqualLoads() ||
      !CanReverse(graph)) {
    return nullptr;
  }
  const StageGraph reversed = InReversedTime(graph);
  FlatGraph columns(reversed);
  if (MemoryGuard(columns).shortage().task >= 0) return nullptr;
  return std::make_unique<View>(reversed, std::move(columns));
}

// The search by workers from a legal sequence; goes on where it stopped. Of
// many workers, those after the first two are made when they first work.
class WorkerTeam {
 public:
  // `bound` returns the lower bound of the step time in ns. It is called once,
  // at the same time as the views of the step are made if there are two
  // threads: each of these takes as long as about ten list schedules.
  WorkerTeam(const StageGraph& graph, const FlatGraph& flat,
             const std::function<int64_t()>& bound, bool warm_start,
             uint64_t seed, const SearchBudget& budget)
      : warm_start_(warm_start),
        epilogue_(flat.epilogue[0]),
        members_(static_cast<size_t>(budget.workers)) {
    ParallelFor(budget.threads, 3, [&](int32_t part) {
      if (part == 0) bound_ = bound();
      if (part == 1) view_ = std::make_unique<View>(graph, flat);
      if (part == 2) backwards_ = BackwardsView(graph, flat);
    });
    Random random(seed);
    for (int32_t i = 0; i < budget.workers; ++i)
      seeds_.push_back(random.Next());
  }

  // Takes over from a team that lives until the first Run has ended.
  void Inherit(const WorkerTeam& earlier) { earlier_ = &earlier; }

  void Run(const SearchBudget& budget, Incumbent* best) {
    const auto workers = static_cast<int32_t>(members_.size());
    if (best->time <= bound_) return;
    if (members_[0] == nullptr) {
      ParallelFor(budget.threads, std::min(workers, kUsualWorkers),
                  [&](int32_t i) { Make(i); });
    }
    std::vector<int64_t> before(members_.size(), 0);
    for (size_t i = 0; i < members_.size(); ++i) {
      if (members_[i] == nullptr) continue;
      before[i] = members_[i]->evaluations();
      if (round_ == 0) members_[i]->Adopt(best->time, best->sequence);
    }
    const int64_t begun = best->evaluations;
    while (true) {
      best->evaluations = begun;
      for (size_t i = 0; i < members_.size(); ++i) {
        if (members_[i] == nullptr) continue;
        best->evaluations += members_[i]->evaluations() - before[i];
      }
      if (members_[Leader()]->best() <= bound_ ||
          budget.Exhausted(best->evaluations)) {
        break;
      }
      // Each goes on alone for some rounds, as these do not take exactly equal
      // time; for few at first, as easy problems are soon solved.
      const int64_t rounds = std::min(std::max<int64_t>(1, round_),
                                      kExchange - round_ % kExchange);
      std::vector<int64_t> done(members_.size(), 0);
      ParallelFor(budget.threads, workers, [&](int32_t i) {
        std::unique_ptr<Member>& member = members_[i];
        const int64_t share = Share(budget.max_evaluations - begun, workers, i);
        while (done[i] < rounds && !budget.Exhausted(0)) {
          const int64_t made =
              member == nullptr ? 0 : member->evaluations() - before[i];
          const int64_t left = share - made;
          if (left <= 0) return;
          if (member == nullptr) {
            Make(i);
            member->Adopt(best->time, best->sequence);
          }
          if (member->best() <= bound_) return;
          member->Round(left, budget);
          ++done[i];
        }
      });
      round_ += *std::max_element(done.begin(), done.end());
      if (round_ % kExchange == 0) {
        Exchange();
      } else {
        CatchUp();
      }
    }
    earlier_ = nullptr;
    const Member& winner = *members_[Leader()];
    best->Offer(winner.best(), winner.sequence());
  }

 private:
  void Make(int32_t i) {
    const bool reversed = backwards_ != nullptr && i % 2 == 1;
    const auto workers = static_cast<int32_t>(members_.size());
    members_[i] = std::make_unique<Member>(
        reversed ? backwards_->Space(bound_ - epilogue_, warm_start_, workers)
                 : view_->Space(bound_, warm_start_, workers),
        i, seeds_[i], reversed, epilogue_);
    if (earlier_ != nullptr && i < std::ssize(earlier_->members_) &&
        earlier_->members_[i] != nullptr) {
      members_[i]->Inherit(*earlier_->members_[i]);
    }
  }
  size_t Leader() const {
    size_t index = 0;
    for (size_t i = 1; i < members_.size(); ++i) {
      if (members_[i] != nullptr &&
          members_[i]->best() < members_[index]->best()) {
        index = i;
      }
    }
    return index;
  }
  void Exchange() {
    const size_t leader = Leader();
    const int64_t time = members_[leader]->best();
    const std::vector<int32_t> sequence = members_[leader]->sequence();
    size_t worst = 0;  // The worst of those that construct.
    for (size_t i = 1; i < members_.size(); ++i) {
      if (members_[i] == nullptr || i == leader) continue;
      switch (members_[i]->role()) {
        case WorkerRole::kConstruct:
          if (members_[i]->best() >= members_[worst]->best()) worst = i;
          break;
        case WorkerRole::kIntensify:
        case WorkerRole::kSolve:
          members_[i]->Adopt(time, sequence);
          break;
        case WorkerRole::kDiversify:
          members_[i]->Learn(time, sequence);
          break;
      }
    }
    if (worst != leader) members_[worst]->Adopt(time, sequence);
  }
  void CatchUp() {
    const size_t leader = Leader();
    const int64_t time = members_[leader]->best();
    const auto far =
        static_cast<int64_t>(kFarBehind * static_cast<double>(time));
    std::vector<int32_t> sequence;
    for (const std::unique_ptr<Member>& member : members_) {
      if (member == nullptr || member->role() != WorkerRole::kConstruct ||
          member->best() <= far) {
        continue;
      }
      if (sequence.empty()) sequence = members_[leader]->sequence();
      member->Adopt(time, sequence);
    }
  }

  int64_t bound_ = 0;
  bool warm_start_;
  int64_t epilogue_;
  std::unique_ptr<View> view_;  // Not null.
  std::unique_ptr<View> backwards_;
  std::vector<uint64_t> seeds_{};
  // Null until one first works.
  std::vector<std::unique_ptr<Member>> members_;
  const WorkerTeam* earlier_ = nullptr;
  int64_t round_ = 0;
};

// Tries to solve a small problem exactly. Returns whether the incumbent is
// proven to be optimal.
bool SolveExactly(const FlatGraph& flat, const SearchBudget& budget,
                  Incumbent* best) {
  SearchBudget part = budget.Until(kExactShare);
  part.max_evaluations =
      std::min(kMaxExactStates, part.max_evaluations - best->evaluations);
  if (flat.num_tasks > kExactTasks || part.max_evaluations < 1) return false;
  const ExactResult exact = ExactSearch(flat, best->time, best->sequence, part);
  best->evaluations += exact.nodes;
  if (!exact.sequence.empty()) best->Offer(exact.step_time, exact.sequence);
  return exact.proven;
}

// Searches by changes of an order alone, for graphs where the list scheduler's
// guard finds no way to run microbatches one after another but an order exists.
// Goes on from `best` if that has an order, as looking for one may take long.
absl::Status SearchWithoutGuard(const StageGraph& graph, const FlatGraph& flat,
                                const MemoryShortage& shortage, int64_t bound,
                                uint64_t seed, const SearchBudget& budget,
                                Incumbent* best) {
  if (best->sequence.empty()) {
    const FeasibilityResult decided = DecideFeasibility(flat);
    if (decided.verdict != Feasibility::kLegal) {
      return DescribeInfeasible(graph, shortage);
    }
    Retimer retimer(flat);
    best->Offer(retimer.Retime(decided.sequence), decided.sequence);
    best->evaluations = 1;
  }
  SearchBudget rest = budget;
  rest.max_evaluations -= best->evaluations;
  Answer answer{.time = best->time, .sequence = best->sequence};
  best->evaluations += SearchLocally(flat, bound, seed, rest, &answer);
  best->Offer(answer.time, answer.sequence);
  return absl::OkStatus();
}

}  // namespace

class GraphSearch::Impl {
 public:
  Impl(StageGraph graph, uint64_t seed, std::optional<NamedBound> known)
      : graph_(std::move(graph)), flat_(graph_), seed_(seed), known_(known) {}

  const StageGraph& graph() const { return graph_; }

  void Inherit(const Impl& earlier) { earlier_ = &earlier; }

  absl::StatusOr<SearchResult> Run(const SearchBudget& budget,
                                   const RankOrders& start) {
    if (budget.workers < 1 || budget.workers > kMostWorkers) {
      return absl::InvalidArgumentError(
          absl::StrFormat("workers is %d; it must be in [1, %d]",
                          budget.workers, kMostWorkers));
    }
    best_.evaluations = 0;
    if (best_.time == kNoLimit) Begin(budget, start);
    if (shortage_.has_value()) {
      BoundWithMemory();
      PIPELOOM_RETURN_IF_ERROR(SearchWithoutGuard(
          graph_, flat_, *shortage_, bound_.time, seed_, budget, &best_));
    } else {
      GoOn(budget);
    }
    earlier_ = nullptr;
    SearchResult result;
    result.evaluations = best_.evaluations;
    PIPELOOM_ASSIGN_OR_RETURN(
        result.schedule, TimeSchedule(graph_, OrdersOf(flat_, best_.sequence)));
    // Every answer passes the independent check.
    PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(graph_, result.schedule));
    PIPELOOM_CHECK(result.schedule.step_time().count() == best_.time);
    result.lower_bound = Nanoseconds(bound_.time);
    result.bound_source = bound_.source;
    result.proven_optimal = result.schedule.step_time() == result.lower_bound;
    return result;
  }

 private:
  bool MayGoOn(const SearchBudget& budget) const {
    return best_.time > bound_.time && !budget.Exhausted(best_.evaluations);
  }

  // Makes the first answers: the list scheduler's, the given one, the
  // classics'.
  void Begin(const SearchBudget& budget, const RankOrders& start) {
    bound_ = LowerBoundWithoutMemory(flat_);
    if (known_.has_value() && known_->time > bound_.time) bound_ = *known_;
    Retimer retimer(flat_);
    const auto offer = [&](const RankOrders& orders) {
      const std::vector<int32_t> sequence = Linearize(flat_, orders);
      if (sequence.empty() || !FitsMemory(flat_, sequence)) return;
      best_.Offer(retimer.Retime(sequence), sequence);
      ++best_.evaluations;
    };
    ListScheduler first(flat_);
    if (!first.CanRun()) {
      shortage_ = first.shortage();
      offer(start);
      return;
    }
    const int64_t time = first.Run({});
    best_.Offer(time, first.sequence());
    best_.evaluations = 1;
    offer(start);
    warm_start_ = best_.time < time;
    if (!MayGoOn(budget)) return;
    for (const RankOrders& orders : ClassicOrders(graph_)) {
      if (!budget.Exhausted(best_.evaluations)) offer(orders);
    }
  }

  void GoOn(const SearchBudget& budget) {
    if (!MayGoOn(budget)) return;
    if (team_ == nullptr) {
      if (flat_.num_tasks <= kExactTasks) {
        BoundWithMemory();
        if (MayGoOn(budget) && SolveExactly(flat_, budget, &best_) &&
            best_.time > bound_.time) {
          bound_ = {best_.time, "exact search"};
        }
        if (!MayGoOn(budget)) return;
      }
      team_ = std::make_unique<WorkerTeam>(
          graph_, flat_,
          [this] {
            if (flat_.num_tasks > kExactTasks) BoundWithMemory();
            return bound_.time;
          },
          warm_start_, seed_, budget);
      if (earlier_ != nullptr && earlier_->team_ != nullptr) {
        team_->Inherit(*earlier_->team_);
      }
    }
    team_->Run(budget, &best_);
  }

  // Computes the bound with memory. It costs some ten list schedules, so it is
  // only called where it pays.
  void BoundWithMemory() {
    if (known_.has_value() || flat_.num_tasks > kMaxTasksOfBound) return;
    bound_ = CheapLowerBound(flat_);
  }

  StageGraph graph_;
  FlatGraph flat_;
  uint64_t seed_;
  std::optional<NamedBound> known_;
  // Set if the list scheduler finds no order: the reason.
  std::optional<MemoryShortage> shortage_{};
  NamedBound bound_{};
  Incumbent best_{};
  bool warm_start_ = false;
  const Impl* earlier_ = nullptr;
  std::unique_ptr<WorkerTeam> team_;
};

GraphSearch::GraphSearch(StageGraph graph, uint64_t seed,
                         std::optional<NamedBound> known)
    : impl_(std::make_unique<Impl>(std::move(graph), seed, known)) {}
GraphSearch::~GraphSearch() = default;

const StageGraph& GraphSearch::graph() const { return impl_->graph(); }

void GraphSearch::Inherit(const GraphSearch& earlier) {
  impl_->Inherit(*earlier.impl_);
}

absl::StatusOr<SearchResult> GraphSearch::Run(const SearchBudget& budget,
                                              const RankOrders& start) {
  return impl_->Run(budget, start);
}

absl::StatusOr<SearchResult> SearchGraph(const StageGraph& graph, uint64_t seed,
                                         const SearchBudget& budget,
                                         const RankOrders& start) {
  return GraphSearch(graph, seed).Run(budget, start);
}

}  // namespace pipeloom::planner
