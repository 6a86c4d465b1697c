#include "planner/search_worker.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace pipeloom::planner {
namespace {

// What evaluations cost, in sweeps of the sequence annealing: measured.
constexpr int64_t kListCost = 16;
constexpr int64_t kTabuCost = 3;
constexpr int64_t kRoundCost = 480;

// Choices that the exchange of ends starts from, in turns.
constexpr size_t kMostBases = 2;
// Tasks of a graph whose portfolio takes a good part of a short budget.
constexpr int32_t kLargeGraph = 2500;
// Candidates for the first and for the last place, of many microbatches.
constexpr int32_t kMostCandidates = 24;
// Places at either end that are exchanged; fewer where it takes long.
constexpr int32_t kEnds = 3;
constexpr int32_t kEndsOfLarger = 2;
constexpr int32_t kSmallGraph = 300;
constexpr int64_t kPolish = 400;
constexpr int64_t kShortPolish = 25;
// A choice within so many mean durations of the best is worth a tabu search.
constexpr double kPromising = 2;
// Rounds of sequence annealing from one start to the next.
constexpr int64_t kCycle = 12;
constexpr int64_t kSteps = 16;
constexpr int64_t kShakePolish = 100;
constexpr double kShakeGate = 8;
// Of the other microbatches that might go first, so many are polished.
constexpr size_t kFronts = 8;
constexpr int64_t kFrontPolish = 50;
// What an exchange of microbatches may cost at first, and what may be kept of
// it, in mean durations.
constexpr double kKickGate = 4;
constexpr double kKickTemperature = 0.3;
constexpr double kKickReset = 1;
constexpr int64_t kKickPolish = 60;
constexpr double kPlaceTemperature = 0.5;
// Rounds without a better answer after which a worker starts anew; the bests
// that it keeps, the share of starts that mix two of them, and the choices
// tried for any other start.
constexpr int64_t kPatience = 40;
constexpr size_t kMostElites = 8;
constexpr double kMixed = 0.5;
constexpr int32_t kStarts = 8;
constexpr int64_t kStartChanges = 10;
// Of forward-backward improvement.
constexpr int64_t kSweepRounds = 4;

}  // namespace

SearchWorker::SearchWorker(const SearchSpace& space, int32_t index,
                           uint64_t seed)
    : space_(&space),
      evaluator_(*space.graph, *space.units),
      lists_(*space.graph),
      ideal_(*space.ideal, *space.units),
      retimer_(*space.graph),
      tabu_(*space.graph),
      sequences_(*space.graph),
      relabels_(*space.graph, *space.units),
      random_(seed),
      keeps_pattern_(index % 2 == 1),
      symmetric_(std::all_of(
          space.units->load.begin(), space.units->load.end(),
          [&](int64_t load) { return load == space.units->load.front(); })),
      index_(index),
      next_portfolio_(static_cast<size_t>(index)) {
  int64_t total = 0;
  for (const int64_t d : space.graph->duration) total += d;
  if (!space.spread->empty()) {
    sweeps_ = std::make_unique<ForwardBackward>(*space.graph);
    if (!sweeps_->can_run()) sweeps_ = nullptr;
  }
  mean_duration_ = static_cast<double>(total) /
                   static_cast<double>(std::max(1, space.graph->num_tasks));
}

void SearchWorker::Adopt(int64_t time, absl::Span<const int32_t> sequence) {
  if (time >= best()) return;
  if (restarted_) return AddElite(time, sequence);
  best_ = time;
  sequence_.assign(sequence.begin(), sequence.end());
  cycle_ = 0;
  stalled_cost_ = 0;
}

void SearchWorker::Keep(int64_t time, absl::Span<const int32_t> sequence) {
  if (time >= best_ || time >= kNoLimit) return;
  best_ = time;
  sequence_.assign(sequence.begin(), sequence.end());
}

absl::Span<const int32_t> SearchWorker::LastSequence() const {
  return last_ideal_ ? ideal_.sequence() : evaluator_.sequence();
}

int64_t SearchWorker::TryChoice(const OrderChoice& choice) {
  last_ideal_ = choice.idealised;
  int64_t time = 0;
  if (choice.idealised) {
    time = ideal_.Evaluate(choice);
    if (time < kNoLimit) time = retimer_.Retime(ideal_.sequence());
  } else {
    time = evaluator_.Evaluate(choice);
  }
  Keep(time, LastSequence());
  ++evaluations_;
  cost_ += kListCost;
  return time;
}

int64_t SearchWorker::Sweep(absl::Span<const int32_t> sequence) {
  const int64_t left = (stop_at_ - evaluations_) / 2;
  const int64_t time = sweeps_->Improve(
      sequence, static_cast<int32_t>(std::min(kSweepRounds, left)));
  Keep(time, sweeps_->sequence());
  evaluations_ += sweeps_->evaluations();
  cost_ += sweeps_->evaluations() * kListCost;
  return time;
}

void SearchWorker::SweepFirst(const SearchBudget& budget) {
  if (sweeps_ == nullptr) return;
  std::vector<int32_t> start = sequence_;
  Sweep(start);
  const std::vector<OrderChoice>& spread = *space_->spread;
  for (auto i = static_cast<size_t>(index_); i < spread.size();
       i += static_cast<size_t>(space_->num_workers)) {
    if (!MayGoOn(budget)) return;
    if (TryChoice(spread[i]) >= kNoLimit) continue;
    start.assign(LastSequence().begin(), LastSequence().end());
    Sweep(start);
  }
}

void SearchWorker::Polish(absl::Span<const int32_t> sequence,
                          int64_t iterations, const SearchBudget& budget) {
  tabu_.Start(sequence);
  while (MayGoOn(budget) && tabu_.stalled() < iterations) {
    const int64_t steps = std::min(kSteps, stop_at_ - evaluations_);
    const int64_t done = tabu_.Run(steps, space_->bound, random_);
    evaluations_ += done;
    cost_ += done * kTabuCost;
    // Nothing to move.
    if (done < steps) break;
    // Far behind: only as long as it was asked for.
    if (tabu_.best_time() >= best_ && tabu_.iterations() >= iterations) break;
    Keep(tabu_.best_time(), tabu_.best_sequence());
  }
  Keep(tabu_.best_time(), tabu_.best_sequence());
}

void SearchWorker::Portfolio(const SearchBudget& budget) {
  const std::vector<OrderChoice>& portfolio = *space_->portfolio;
  if (!started_) {
    started_ = true;
    SweepFirst(budget);
    if (space_->warm_start || space_->graph->num_tasks <= kLargeGraph) {
      const std::vector<int32_t> start = sequence_;
      Polish(start, kPolish, budget);
    }
  }
  const int64_t before = best_;
  for (int i = 0; i < 8 && next_portfolio_ < portfolio.size(); ++i) {
    if (!MayGoOn(budget)) return;
    const OrderChoice& choice = portfolio[next_portfolio_];
    next_portfolio_ += static_cast<size_t>(space_->num_workers);
    const int64_t time = TryChoice(choice);
    const auto at = std::upper_bound(
        bases_.begin(), bases_.end(), time,
        [](int64_t t, const Candidate& c) { return t < c.time; });
    // Odd workers stay with patterns, which need more steps to pay.
    if (keeps_pattern_ && IsPattern(choice.rule) && time < home_.time) {
      home_ = {.time = time, .choice = choice};
    }
    if (choice.rule == PriorityRule::kTail) continue;
    bases_.insert(at, {.time = time, .choice = choice});
    if (bases_.size() > kMostBases) bases_.pop_back();
  }
  // So that large graphs, whose portfolio takes all the time, are polished.
  if (best_ < before && space_->graph->num_tasks > kLargeGraph) {
    const std::vector<int32_t> start = sequence_;
    Polish(start, kShortPolish, budget);
  }
}

void SearchWorker::ExchangeEnds(Candidate* base, const SearchBudget& budget) {
  const OrderUnits& units = *space_->units;
  std::vector<int32_t> microbatches;
  std::vector<int64_t> load(units.period.size(), -1);
  for (int32_t u = 0; u < units.num_units(); ++u) {
    int64_t& sum = load[units.microbatch[u]];
    if (sum < 0) {
      sum = 0;
      microbatches.push_back(units.microbatch[u]);
    }
    sum += units.load[u];
  }
  std::sort(microbatches.begin(), microbatches.end(),
            [&](int32_t a, int32_t b) {
              return load[a] != load[b] ? load[a] < load[b] : a < b;
            });
  // Of many, those of least load: they fill and drain the pipeline fastest.
  if (static_cast<int32_t>(microbatches.size()) > kMostCandidates) {
    microbatches.resize(kMostCandidates);
  }
  std::vector<int32_t> moved;
  std::vector<int32_t> rest;
  // The choice with microbatch m behind (or ahead of) the units of `place`
  // others.
  const auto moved_to_end = [&](const OrderChoice& from, int32_t m,
                                int32_t place, bool front) {
    moved.clear();
    rest.clear();
    for (const int32_t u : from.order) {
      (units.microbatch[u] == m ? moved : rest).push_back(u);
    }
    const size_t offset =
        std::min(rest.size(), static_cast<size_t>(place) * moved.size());
    const auto at = static_cast<int64_t>(front ? offset : rest.size() - offset);
    OrderChoice choice = from;
    choice.order.assign(rest.begin(), rest.begin() + at);
    choice.order.insert(choice.order.end(), moved.begin(), moved.end());
    choice.order.insert(choice.order.end(), rest.begin() + at, rest.end());
    return choice;
  };
  const int32_t ends =
      space_->graph->num_tasks <= kSmallGraph ? kEnds : kEndsOfLarger;
  for (int32_t place = 0; place < ends; ++place) {
    for (const bool front : {false, true}) {
      Candidate best = *base;
      for (const int32_t m : microbatches) {
        if (!MayGoOn(budget)) break;
        const OrderChoice choice = moved_to_end(base->choice, m, place, front);
        const int64_t time = TryChoice(choice);
        if (time < best.time) best = {.time = time, .choice = choice};
      }
      *base = std::move(best);
    }
  }
  if (!MayGoOn(budget)) return;
  std::vector<int32_t> start;
  const auto try_and_polish = [&](const OrderChoice& choice, int64_t n) {
    if (TryChoice(choice) >= kNoLimit) return;
    start.assign(LastSequence().begin(), LastSequence().end());
    Polish(start, n, budget);
  };
  try_and_polish(base->choice, kPolish);
  // What is best first may show only then.
  std::vector<Candidate> fronts;
  for (const int32_t m : microbatches) {
    if (!MayGoOn(budget)) return;
    if (m == units.microbatch[base->choice.order.front()]) continue;
    fronts.push_back({.choice = moved_to_end(base->choice, m, 0, true)});
    fronts.back().time = TryChoice(fronts.back().choice);
  }
  std::stable_sort(
      fronts.begin(), fronts.end(),
      [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
  fronts.resize(std::min(fronts.size(), kFronts));
  for (const Candidate& other : fronts) {
    if (MayGoOn(budget)) try_and_polish(other.choice, kFrontPolish);
  }
}

void SearchWorker::PerturbChoices(const SearchBudget& budget) {
  if (home_.choice.order.empty() || (!keeps_pattern_ && !bases_.empty() &&
                                     bases_.front().time < home_.time)) {
    if (bases_.empty()) return;
    home_ = bases_.front();
  }
  if (current_.choice.order.empty() ||
      static_cast<double>(current_.time - home_.time) > 3 * mean_duration_) {
    current_ = home_;
  }
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    Candidate next{.time = 0, .choice = current_.choice};
    Perturb(&next.choice, random_);
    if (random_.Below(3) == 0) Perturb(&next.choice, random_);
    const int64_t before = best_;
    next.time = TryChoice(next.choice);
    if (next.time < home_.time) home_ = next;
    const auto worse = static_cast<double>(next.time - current_.time);
    const bool accepted =
        worse <= 0 || worse < 0.3 * mean_duration_ * random_.Unit();
    if (accepted) current_ = next;
    if (next.time < kNoLimit &&
        static_cast<double>(next.time - before) < kPromising * mean_duration_) {
      const auto last = LastSequence();
      const std::vector<int32_t> start(last.begin(), last.end());
      Polish(start, kShortPolish, budget);
    }
  }
}

void SearchWorker::Shake(const SearchBudget& budget) {
  const FlatGraph& g = *space_->graph;
  const OrderUnits& units = *space_->units;
  std::vector<int64_t> noise(static_cast<size_t>(units.num_units()));
  std::vector<int64_t> key(static_cast<size_t>(g.num_tasks));
  std::vector<int32_t> order(static_cast<size_t>(g.num_tasks));
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    if (shaken_sequence_.empty() ||
        static_cast<double>(shaken_ - best_) > 2 * mean_duration_) {
      shaken_ = best_;
      shaken_sequence_ = sequence_;
    }
    const double reach = 2 * mean_duration_ /
                         static_cast<double>(int64_t{1} << random_.Below(4));
    const int64_t kind = random_.Below(3);
    for (int64_t& n : noise) {
      n = kind == 0 && random_.Below(4) != 0
              ? 0
              : static_cast<int64_t>(reach * (2 * random_.Unit() - 1));
    }
    retimer_.Retime(shaken_sequence_);
    for (int32_t t = 0; t < g.num_tasks; ++t) {
      key[t] = retimer_.start(t) +
               (kind == 2 ? static_cast<int64_t>(reach * (random_.Unit() - 0.5))
                          : noise[units.unit[t]]);
      order[t] = t;
    }
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return key[a] != key[b] ? key[a] < key[b] : a < b;
    });
    const int64_t time =
        lists_.Run({.order = order,
                    .prefer = random_.Below(4) == 0 ? Prefer::kBackward
                                                    : Prefer::kPriority,
                    .patience = 0.5 * static_cast<double>(random_.Below(3))});
    ++evaluations_;
    cost_ += kListCost + 4;
    Keep(time, lists_.sequence());
    if (static_cast<double>(time - shaken_) > kShakeGate * mean_duration_)
      continue;
    Polish(lists_.sequence(), kShakePolish, budget);
    const auto worse = static_cast<double>(tabu_.best_time() - shaken_);
    if (worse <= 0 ||
        random_.Unit() < std::exp(-worse / (0.3 * mean_duration_))) {
      shaken_ = tabu_.best_time();
      shaken_sequence_.assign(tabu_.best_sequence().begin(),
                              tabu_.best_sequence().end());
    }
  }
}

void SearchWorker::KickMicrobatches(const SearchBudget& budget) {
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    if (kicked_sequence_.empty() ||
        static_cast<double>(kicked_ - best_) > kKickReset * mean_duration_) {
      kicked_ = best_;
      kicked_sequence_ = sequence_;
    }
    relabels_.Start(kicked_sequence_);
    const int64_t time = relabels_.Kick(random_);
    ++evaluations_;
    cost_ += 2;
    if (static_cast<double>(time - kicked_) > kKickGate * mean_duration_) {
      continue;
    }
    Polish(relabels_.sequence(), kKickPolish, budget);
    const auto worse = static_cast<double>(tabu_.best_time() - kicked_);
    if (worse <= 0 || random_.Unit() < std::exp(-worse / (kKickTemperature *
                                                          mean_duration_))) {
      kicked_ = tabu_.best_time();
      kicked_sequence_.assign(tabu_.best_sequence().begin(),
                              tabu_.best_sequence().end());
    }
  }
}

void SearchWorker::PlaceMicrobatches(const SearchBudget& budget) {
  relabels_.Start(sequence_);
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    const double left =
        1 - static_cast<double>(cost_) / static_cast<double>(kRoundCost);
    const int64_t done =
        relabels_.Run(std::min<int64_t>(25, stop_at_ - evaluations_),
                      kPlaceTemperature * mean_duration_ * left * left,
                      space_->bound, random_);
    evaluations_ += done;
    cost_ += std::max<int64_t>(done, 8);
  }
  const auto best = relabels_.best_sequence();
  Keep(relabels_.best_time(), best);
  Polish(best, kShakePolish, budget);
}

void SearchWorker::ImproveBest(const SearchBudget& budget) {
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    const std::vector<int32_t> start = sequence_;
    const int64_t before = evaluations_;
    Polish(start, kRoundCost / kTabuCost, budget);
    if (evaluations_ - before < kSteps) return;
  }
}

void SearchWorker::ImproveSequence(const SearchBudget& budget) {
  if (cycle_ % kCycle == 0) sequences_.Start(sequence_);
  const double left =
      1 - static_cast<double>(cycle_ % kCycle) / static_cast<double>(kCycle);
  ++cycle_;
  const double temperature = 0.3 * mean_duration_ * left * left;
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    const int64_t done =
        sequences_.Run(std::min<int64_t>(25, stop_at_ - evaluations_),
                       temperature, space_->bound, random_);
    evaluations_ += done;
    cost_ += std::max<int64_t>(done, 8);
    Keep(sequences_.best_time(), sequences_.best_sequence());
  }
}

void SearchWorker::Round(int64_t limit, const SearchBudget& budget) {
  stop_at_ = limit < std::numeric_limits<int64_t>::max() - evaluations_
                 ? evaluations_ + limit
                 : std::numeric_limits<int64_t>::max();
  cost_ = 0;
  if (stalled_cost_ >= kPatience * kRoundCost && relabels_.can_move()) {
    Restart(budget);
  }
  const int64_t before = best_;
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    if (next_portfolio_ < space_->portfolio->size()) {
      Portfolio(budget);
      continue;
    }
    if (next_base_ < bases_.size() && !symmetric_ &&
        space_->units->period.size() > 2) {
      ExchangeEnds(&bases_[next_base_++], budget);
      if (next_base_ == bases_.size()) {
        std::stable_sort(bases_.begin(), bases_.end(),
                         [](const Candidate& a, const Candidate& b) {
                           return a.time < b.time;
                         });
      }
      continue;
    }
    TakeTurn(turn_++, budget);
    // A turn that found nothing to do must not be asked for ever.
    cost_ += 8;
  }
  stalled_cost_ = best_ < before ? 0 : stalled_cost_ + cost_;
}

void SearchWorker::AddElite(int64_t time, absl::Span<const int32_t> sequence) {
  if (time < top_) {
    top_ = time;
    top_sequence_.assign(sequence.begin(), sequence.end());
  }
  for (const Elite& elite : elites_) {
    if (elite.time == time && absl::MakeConstSpan(elite.sequence) == sequence) {
      return;
    }
  }
  if (elites_.size() < kMostElites) {
    elites_.push_back({});
  } else {
    // The worst makes room.
    const auto worst = std::max_element(
        elites_.begin(), elites_.end(),
        [](const Elite& a, const Elite& b) { return a.time < b.time; });
    if (worst->time <= time) return;
    std::swap(*worst, elites_.back());
  }
  elites_.back() = {.time = time,
                    .sequence = {sequence.begin(), sequence.end()}};
}

void SearchWorker::MixElites() {
  const FlatGraph& g = *space_->graph;
  const auto n = static_cast<int64_t>(elites_.size());
  const int64_t a = random_.Below(n);
  const int64_t b = (a + 1 + random_.Below(n - 1)) % n;
  const double share = 0.3 + 0.4 * random_.Unit();
  std::vector<double> key(static_cast<size_t>(g.num_tasks));
  retimer_.Retime(elites_[a].sequence);
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    key[t] = share * static_cast<double>(retimer_.start(t));
  }
  retimer_.Retime(elites_[b].sequence);
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    key[t] += (1 - share) * static_cast<double>(retimer_.start(t));
  }
  std::vector<int32_t> order(static_cast<size_t>(g.num_tasks));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
    return key[x] != key[y] ? key[x] < key[y] : x < y;
  });
  const int64_t time = lists_.Run(
      {.order = order, .prefer = Prefer::kPriority, .patience = 0.5});
  ++evaluations_;
  cost_ += kListCost;
  Keep(time, lists_.sequence());
}

// A few light microbatches fill the pipeline, then the heavy ones come, and the
// other light ones drain it; by all their work or that of their first module.
std::vector<int32_t> SearchWorker::DrawOrder() {
  const OrderUnits& units = *space_->units;
  std::vector<double> load(units.period.size(), -1);
  const bool all = random_.Below(2) == 0;
  const double noise = 0.4 * random_.Unit();
  for (int32_t u = 0; u < units.num_units(); ++u) {
    double& sum = load[units.microbatch[u]];
    if (sum >= 0 && !all) continue;
    if (sum < 0) sum = 0;
    sum += static_cast<double>(units.load[u]);
  }
  for (double& l : load) l *= 1 + noise * (random_.Unit() - 0.5);
  std::vector<int32_t> order(static_cast<size_t>(units.num_units()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return load[units.microbatch[a]] > load[units.microbatch[b]];
  });
  const auto n = static_cast<int64_t>(order.size());
  const int64_t light = random_.Below(n / 4 + 1);
  std::rotate(order.begin(), order.end() - light, order.end());
  return order;
}

void SearchWorker::Restart(const SearchBudget& budget) {
  AddElite(best_, sequence_);
  restarted_ = true;
  stalled_cost_ = 0;
  best_ = std::numeric_limits<int64_t>::max();
  shaken_sequence_.clear();
  kicked_sequence_.clear();
  current_ = {};
  cycle_ = 0;
  if (elites_.size() >= 2 && random_.Unit() < kMixed) {
    MixElites();
  } else {
    for (int32_t i = 0; i < kStarts; ++i) TryChoice(DrawChoice());
  }
  const std::vector<int32_t> start = sequence_;
  Polish(start, kPolish, budget);
}

OrderChoice SearchWorker::DrawChoice() {
  OrderChoice choice{.order = DrawOrder()};
  if (random_.Below(2) == 0) {
    choice.prefer =
        random_.Below(2) == 0 ? Prefer::kBackward : Prefer::kAlternate;
    choice.patience = 0.5 * static_cast<double>(random_.Below(3));
  } else if (!bases_.empty()) {
    choice = bases_[random_.Below(static_cast<int64_t>(bases_.size()))].choice;
    for (int64_t k = 0; k < kStartChanges; ++k) Perturb(&choice, random_);
  }
  if (random_.Below(2) == 0) {
    choice.capacity_ratio = 0.2 + 0.1 * static_cast<double>(random_.Below(8));
  }
  return choice;
}

void SearchWorker::TakeTurn(int64_t turn, const SearchBudget& budget) {
  if (relabels_.can_move() && relabels_.keeps_memory()) {
    if (turn % 40 == 19) return ImproveSequence(budget);
    if (turn % 40 == 39) return PerturbChoices(budget);
    switch (turn % 10) {
      case 3:
      case 7:
        return Shake(budget);
      case 6:
        return PlaceMicrobatches(budget);
      default:
        return KickMicrobatches(budget);
    }
  }
  switch (turn % 5) {
    case 0:
    case 2:
      return PerturbChoices(budget);
    case 1:
      return ImproveBest(budget);
    case 3:
      return Shake(budget);
    default:
      return ImproveSequence(budget);
  }
}

}  // namespace pipeloom::planner
