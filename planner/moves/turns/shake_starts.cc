#include "planner/moves/turns/shake_starts.h"

#include <cmath>
#include <cstdint>

namespace pipeloom::planner {
namespace {

constexpr int64_t kPolish = 100;
// Largest loss by a disturbance that is worth a tabu search, the temperature of
// accepting its result, the largest disturbance of a start time, and the
// distance from the best at which to begin from it again; in mean durations.
constexpr double kGate = 8;
constexpr double kTemperature = 0.3;
constexpr double kReach = 2;
constexpr double kReset = 2;

}  // namespace

void ShakeStarts::Run(const SearchBudget& budget) {
  SearchState& s = state();
  const FlatGraph& g = s.graph();
  const OrderUnits& units = s.units();
  Random& random = s.random();
  noise_.assign(static_cast<size_t>(units.num_units()), 0);
  key_.assign(static_cast<size_t>(g.num_tasks), 0);
  while (s.RoundMayGoOn(budget)) {
    if (shaken_.sequence.empty() ||
        static_cast<double>(shaken_.time - s.since_start().time) >
            kReset * s.mean_duration()) {
      shaken_ = {.time = s.since_start().time,
                 .sequence = s.since_start().sequence};
    }
    const double reach = kReach * s.mean_duration() /
                         static_cast<double>(int64_t{1} << random.Below(4));
    const int64_t kind = random.Below(3);
    for (int64_t& n : noise_) {
      n = kind == 0 && random.Below(4) != 0
              ? 0
              : static_cast<int64_t>(reach * (2 * random.Unit() - 1));
    }
    s.retimer().Retime(shaken_.sequence);
    for (int32_t t = 0; t < g.num_tasks; ++t) {
      key_[t] = s.retimer().start(t) +
                (kind == 2 ? static_cast<int64_t>(reach * (random.Unit() - 0.5))
                           : noise_[units.unit[t]]);
    }
    sorter_.Sort(key_, &order_);
    const SweepStyle style = s.DrawStyle();
    const int64_t time = s.Relist(
        order_, style,
        random.Below(4) == 0 ? Prefer::kBackward : Prefer::kPriority, budget);
    s.Spend(0, 4);
    if (time >= kNoLimit ||
        static_cast<double>(time - shaken_.time) > kGate * s.mean_duration()) {
      continue;
    }
    s.Polish(s.relisted(), kPolish, budget);
    const TabuSearch& tabu = s.tabu();
    const auto worse = static_cast<double>(tabu.best_time() - shaken_.time);
    if (worse <= 0 ||
        random.Unit() < std::exp(-worse / (kTemperature * s.mean_duration()))) {
      shaken_.time = tabu.best_time();
      shaken_.sequence.assign(tabu.best_sequence().begin(),
                              tabu.best_sequence().end());
    }
  }
}

}  // namespace pipeloom::planner
