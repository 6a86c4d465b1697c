#include "planner/integer_program.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <limits>
#include <utility>

#include "base/check.h"

namespace pipeloom::planner {
namespace {

using Use = IntegerProgram::Use;

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
// Rounds of prices from one repair to the next.
constexpr int32_t kRepairEvery = 10;
// Rounds without a better bound until steps are halved.
constexpr int32_t kPatience = 4;

// What every option of the group uses, as runs that do not overlap.
std::vector<Use> LeastUses(const IntegerProgram::Group& group) {
  std::vector<int32_t> cuts;
  for (const IntegerProgram::Option& option : group) {
    for (const Use& use : option.uses) {
      cuts.push_back(use.first_row);
      cuts.push_back(use.end_row);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<Use> least;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    int64_t amount = kNone;
    for (const IntegerProgram::Option& option : group) {
      int64_t own = 0;
      for (const Use& use : option.uses) {
        if (use.first_row <= cuts[i] && cuts[i] < use.end_row) {
          own += use.amount;
        }
      }
      amount = std::min(amount, own);
    }
    if (amount > 0) least.push_back({cuts[i], cuts[i + 1], amount});
  }
  return least;
}

class Solver {
 public:
  Solver(const IntegerProgram& program, const IntegerProgramOptions& options)
      : program_(program),
        options_(options),
        num_rows_(program.limits.size()),
        least_(program.groups.size()),
        fixed_(program.groups.size(), -1),
        floor_(num_rows_, 0),
        price_sum_(num_rows_ + 1, 0),
        used_(num_rows_ + 1, 0),
        groups_of_row_(num_rows_),
        overlapping_(program.groups.size(), false),
        reduced_(program.groups.size()) {
    for (size_t g = 0; g < program.groups.size(); ++g) {
      PIPELOOM_CHECK(!program.groups[g].empty());
      for (const IntegerProgram::Option& option : program.groups[g]) {
        reduced_[g].push_back(static_cast<double>(option.cost));
      }
      for (const IntegerProgram::Option& option : program.groups[g]) {
        for (size_t u = 1; u < option.uses.size(); ++u) {
          if (option.uses[u].first_row < option.uses[u - 1].end_row) {
            overlapping_[g] = true;
          }
        }
      }
      least_[g] = LeastUses(program.groups[g]);
      Add(least_[g], 1, floor_);
      size_t first = num_rows_;
      size_t end = 0;
      for (const IntegerProgram::Option& option : program.groups[g]) {
        for (const Use& use : option.uses) {
          first = std::min(first, static_cast<size_t>(use.first_row));
          end = std::max(end, static_cast<size_t>(use.end_row));
        }
      }
      for (size_t r = first; r < end; ++r) {
        groups_of_row_[r].push_back(static_cast<int32_t>(g));
      }
    }
  }

  IntegerSolution Solve(absl::Span<const int32_t> start) {
    if (!FloorFits()) {
      solution_.optimal = true;
      return solution_;
    }
    if (start.size() == program_.groups.size()) {
      choice_.assign(start.begin(), start.end());
      if (Measure()) {
        Improve();
        Keep();
      }
    }
    Prices prices(num_rows_, 0);
    Visit(prices, options_.root_rounds, 0);
    if (!solution_.feasible) {
      solution_.bound = 0;
      solution_.optimal = !cut_short_;
      return solution_;
    }
    solution_.bound = std::max(root_bound_, std::min(solution_.cost, open_));
    solution_.optimal = solution_.bound == solution_.cost;
    return solution_;
  }

 private:
  using Prices = std::vector<double>;
  struct Move {
    double value = 0;
    int32_t group = 0;
    int32_t option = 0;
    auto operator<=>(const Move&) const = default;
  };

  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  int64_t OptionCost(size_t g, int32_t j) const {
    return program_.groups[g][at(j)].cost;
  }
  const std::vector<Use>& OptionUses(size_t g, int32_t j) const {
    return program_.groups[g][at(j)].uses;
  }
  int32_t NumOptions(size_t g) const {
    return static_cast<int32_t>(program_.groups[g].size());
  }
  static void Add(const std::vector<Use>& uses, int64_t sign,
                  std::vector<int64_t>& rows) {
    for (const Use& use : uses) {
      for (int32_t r = use.first_row; r < use.end_row; ++r) {
        rows[static_cast<size_t>(r)] += sign * use.amount;
      }
    }
  }
  bool FloorFits() const {
    for (size_t r = 0; r < num_rows_; ++r) {
      if (floor_[r] > program_.limits[r]) return false;
    }
    return true;
  }

  // ---- Answers. `choice_` and `used_` belong together.

  // Fills in used_; whether all limits hold.
  bool Measure() {
    std::fill(used_.begin(), used_.end(), 0);
    cost_ = 0;
    for (size_t g = 0; g < choice_.size(); ++g) {
      for (const Use& use : OptionUses(g, choice_[g])) {
        used_[static_cast<size_t>(use.first_row)] += use.amount;
        used_[static_cast<size_t>(use.end_row)] -= use.amount;
      }
      cost_ += OptionCost(g, choice_[g]);
    }
    bool fits = true;
    int64_t running = 0;
    for (size_t r = 0; r < num_rows_; ++r) {
      running += used_[r];
      used_[r] = running;
      fits = fits && running <= program_.limits[r];
    }
    return fits;
  }
  void Switch(size_t g, int32_t option) {
    Add(OptionUses(g, choice_[g]), -1, used_);
    Add(OptionUses(g, option), 1, used_);
    cost_ += OptionCost(g, option) - OptionCost(g, choice_[g]);
    choice_[g] = option;
  }
  // Whether the switch breaks no limit that holds now.
  bool MaySwitch(size_t g, int32_t option) const {
    const std::vector<Use>& from = OptionUses(g, choice_[g]);
    for (const Use& use : OptionUses(g, option)) {
      // Where one run of `from` covers this one with as much or more, there is
      // nothing to check.
      bool covered = false;
      for (const Use& old : from) {
        covered = covered || (old.first_row <= use.first_row &&
                              use.end_row <= old.end_row &&
                              use.amount <= old.amount && !overlapping_[g]);
      }
      if (covered) continue;
      for (int32_t r = use.first_row; r < use.end_row; ++r) {
        const auto row = static_cast<size_t>(r);
        const int64_t more =
            AmountAt(OptionUses(g, option), row) - AmountAt(from, row);
        if (more > 0 && used_[row] + more > program_.limits[row]) return false;
      }
    }
    return true;
  }
  void Keep() {
    if (solution_.feasible && solution_.cost <= cost_) return;
    solution_.feasible = true;
    solution_.cost = cost_;
    solution_.choice = choice_;
  }
  static int64_t AmountAt(const std::vector<Use>& uses, size_t row) {
    const auto r = static_cast<int32_t>(row);
    int64_t amount = 0;
    for (const Use& use : uses) {
      if (use.first_row <= r && r < use.end_row) amount += use.amount;
    }
    return amount;
  }

  // Row after row, switches groups to options that use less of it, those that
  // cost least a unit at the present prices first; false when that is not
  // enough.
  bool Repair() {
    Measure();
    for (size_t r = 0; r < num_rows_; ++r) {
      if (used_[r] <= program_.limits[r]) continue;
      moves_.clear();
      for (const int32_t group : groups_of_row_[r]) {
        const auto g = static_cast<size_t>(group);
        if (fixed_[g] >= 0) continue;
        const int64_t now = AmountAt(OptionUses(g, choice_[g]), r);
        const double now_reduced = reduced_[g][at(choice_[g])];
        for (int32_t j = 0; j < NumOptions(g); ++j) {
          const int64_t less = now - AmountAt(OptionUses(g, j), r);
          if (less <= 0) continue;
          moves_.push_back(
              {(reduced_[g][at(j)] - now_reduced) / static_cast<double>(less),
               group, j});
        }
      }
      std::sort(moves_.begin(), moves_.end());
      for (const Move& move : moves_) {
        const auto g = static_cast<size_t>(move.group);
        if (AmountAt(OptionUses(g, move.option), r) >=
                AmountAt(OptionUses(g, choice_[g]), r) ||
            !MaySwitch(g, move.option)) {
          continue;
        }
        Switch(g, move.option);
        if (used_[r] <= program_.limits[r]) break;
      }
      if (used_[r] > program_.limits[r]) return false;
    }
    return true;
  }
  // Takes cheaper options while they fit, those worth most at the present
  // prices first.
  void Improve() {
    moves_.clear();
    for (size_t g = 0; g < choice_.size(); ++g) {
      if (fixed_[g] >= 0) continue;
      const double now = reduced_[g][at(choice_[g])];
      for (int32_t j = 0; j < NumOptions(g); ++j) {
        if (OptionCost(g, j) < OptionCost(g, choice_[g])) {
          moves_.push_back(
              {reduced_[g][at(j)] - now, static_cast<int32_t>(g), j});
        }
      }
    }
    std::sort(moves_.begin(), moves_.end());
    for (const Move& move : moves_) {
      const auto g = static_cast<size_t>(move.group);
      if (OptionCost(g, move.option) < OptionCost(g, choice_[g]) &&
          MaySwitch(g, move.option)) {
        Switch(g, move.option);
      }
    }
  }

  // Takes a cheaper option that breaks limits if a dearer one of another group
  // mends them all for less. Passes over all groups until one gains nothing.
  void Exchange() {
    bool gained = true;
    for (int32_t pass = 0; gained && pass < options_.exchanges; ++pass) {
      gained = false;
      for (size_t g = 0; g < choice_.size(); ++g) {
        if (fixed_[g] >= 0) continue;
        for (int32_t j = 0; j < NumOptions(g); ++j) {
          gained = TryExchange(g, j) || gained;
        }
      }
    }
  }
  bool TryExchange(size_t g, int32_t option) {
    const int32_t from = choice_[g];
    const int64_t gain = OptionCost(g, from) - OptionCost(g, option);
    if (gain <= 0) return false;
    Switch(g, option);
    broken_.clear();
    for (const Use& use : OptionUses(g, option)) {
      for (int32_t r = use.first_row; r < use.end_row; ++r) {
        const auto row = static_cast<size_t>(r);
        if (used_[row] > program_.limits[row] &&
            (broken_.empty() || broken_.back() != row)) {
          broken_.push_back(row);
        }
      }
    }
    if (broken_.empty()) return true;
    size_t mender = 0;
    int32_t mended = -1;
    int64_t least = gain;
    for (const int32_t group : groups_of_row_[broken_[0]]) {
      const auto h = static_cast<size_t>(group);
      if (h == g || fixed_[h] >= 0) continue;
      for (int32_t k = 0; k < NumOptions(h); ++k) {
        const int64_t more = OptionCost(h, k) - OptionCost(h, choice_[h]);
        if (more >= least || k == choice_[h]) continue;
        bool mends = true;
        for (const size_t row : broken_) {
          mends = mends && used_[row] -
                                   AmountAt(OptionUses(h, choice_[h]), row) +
                                   AmountAt(OptionUses(h, k), row) <=
                               program_.limits[row];
          if (!mends) break;
        }
        if (!mends || !MaySwitch(h, k)) continue;
        least = more;
        mender = h;
        mended = k;
      }
    }
    if (mended < 0) {
      Switch(g, from);
      return false;
    }
    Switch(mender, mended);
    return true;
  }

  // ---- Bounds.

  double Reduced(size_t g, int32_t j) const {
    const IntegerProgram::Option& option =
        program_.groups[g][static_cast<size_t>(j)];
    auto reduced = static_cast<double>(option.cost);
    for (const Use& use : option.uses) {
      reduced += static_cast<double>(use.amount) *
                 (price_sum_[static_cast<size_t>(use.end_row)] -
                  price_sum_[static_cast<size_t>(use.first_row)]);
    }
    return reduced;
  }
  // The bound at these prices, its choices in `choice_`, and what they use.
  double Price(const Prices& prices) {
    double paid = 0;
    for (size_t r = 0; r < num_rows_; ++r) {
      price_sum_[r + 1] = price_sum_[r] + prices[r];
      paid += prices[r] * static_cast<double>(program_.limits[r]);
    }
    double sum = 0;
    choice_.resize(program_.groups.size());
    for (size_t g = 0; g < program_.groups.size(); ++g) {
      int32_t best = fixed_[g];
      for (int32_t j = 0; j < NumOptions(g); ++j) {
        reduced_[g][at(j)] = Reduced(g, j);
        if (fixed_[g] >= 0) continue;
        if (best < 0 || reduced_[g][at(j)] < reduced_[g][at(best)]) best = j;
      }
      choice_[g] = best;
      sum += reduced_[g][at(best)];
    }
    rounding_ = 1e-12 * (sum + paid) + 1e-6;
    return sum - paid;
  }
  int64_t Integral(double bound) const {
    return std::max<int64_t>(
        0, static_cast<int64_t>(std::ceil(bound - rounding_)));
  }
  bool CloseEnough(int64_t bound) const {
    return solution_.feasible &&
           (bound >= solution_.cost ||
            static_cast<double>(solution_.cost) <=
                (1 + options_.gap) * static_cast<double>(bound));
  }

  // Improves the prices; the best are left in `prices`.
  int64_t Bound(Prices& prices, int32_t rounds) {
    Prices best = prices;
    int64_t bound = 0;
    double best_value = -std::numeric_limits<double>::infinity();
    double step = 1;
    int32_t waiting = 0;
    for (int32_t round = 0;; ++round) {
      const double value = Price(prices);
      bound = std::max(bound, Integral(value));
      if (value > best_value) {
        best_value = value;
        best = prices;
        waiting = 0;
      } else if (++waiting == kPatience) {
        step /= 2;
        waiting = 0;
      }
      const bool fits = Measure();
      if (fits) {
        Keep();
      } else if (round % kRepairEvery == 0 || round == rounds) {
        if (Repair()) {
          Improve();
          Keep();
        }
        // The step below is taken from what the prices suggested.
        Price(prices);
        Measure();
      }
      if (CloseEnough(bound) || round >= rounds) break;
      double length = 0;
      for (size_t r = 0; r < num_rows_; ++r) {
        const auto over = static_cast<double>(used_[r]) -
                          static_cast<double>(program_.limits[r]);
        if (over > 0 || prices[r] > 0) length += over * over;
      }
      if (length == 0) break;
      const double target = solution_.feasible
                                ? static_cast<double>(solution_.cost)
                                : 1.2 * std::abs(best_value) + 1;
      const double scale =
          step * std::max(target - value, 1e-3 * std::abs(target) + 1e-9) /
          length;
      for (size_t r = 0; r < num_rows_; ++r) {
        const auto over = static_cast<double>(used_[r]) -
                          static_cast<double>(program_.limits[r]);
        prices[r] = std::max(0.0, prices[r] + scale * over);
      }
    }
    prices = std::move(best);
    if (rounds == options_.root_rounds && solution_.feasible &&
        !CloseEnough(bound)) {
      choice_ = solution_.choice;
      Measure();
      Exchange();
      Keep();
    }
    return bound;
  }

  // ---- The tree.

  void LeaveOpen(int64_t bound) { open_ = std::min(open_, bound); }

  void Visit(Prices prices, int32_t rounds, int64_t parent_bound) {
    ++solution_.nodes;
    const int64_t bound = std::max(parent_bound, Bound(prices, rounds));
    if (rounds == options_.root_rounds && solution_.nodes == 1) {
      root_bound_ = bound;
    }
    if (CloseEnough(bound)) {
      LeaveOpen(bound);
      return;
    }
    const double value = Price(prices);
    // The free group whose two best options are closest.
    size_t branch = program_.groups.size();
    double closest = std::numeric_limits<double>::infinity();
    for (size_t g = 0; g < program_.groups.size(); ++g) {
      if (fixed_[g] >= 0 || NumOptions(g) < 2) continue;
      const double least = reduced_[g][at(choice_[g])];
      double second = std::numeric_limits<double>::infinity();
      for (int32_t j = 0; j < NumOptions(g); ++j) {
        if (j != choice_[g]) second = std::min(second, reduced_[g][at(j)]);
      }
      if (branch == program_.groups.size() || second - least < closest) {
        closest = second - least;
        branch = g;
      }
    }
    if (branch == program_.groups.size()) {
      // Nothing is left to decide; Bound has kept this choice if it fits.
      if (Measure()) Keep();
      return;
    }
    std::vector<std::pair<double, int32_t>> children;
    const double least = reduced_[branch][at(choice_[branch])];
    for (int32_t j = 0; j < NumOptions(branch); ++j) {
      children.emplace_back(reduced_[branch][at(j)] - least, j);
    }
    const double rounding = rounding_;
    std::sort(children.begin(), children.end());
    for (const auto& [more, j] : children) {
      const int64_t child_bound = std::max(
          bound, static_cast<int64_t>(std::ceil(value + more - 2 * rounding)));
      if (CloseEnough(child_bound)) {
        LeaveOpen(child_bound);
        continue;
      }
      if (solution_.nodes >= options_.max_nodes) {
        cut_short_ = true;
        LeaveOpen(child_bound);
        continue;
      }
      fixed_[branch] = j;
      Add(least_[branch], -1, floor_);
      Add(OptionUses(branch, j), 1, floor_);
      if (FloorFits()) Visit(prices, options_.node_rounds, child_bound);
      Add(OptionUses(branch, j), -1, floor_);
      Add(least_[branch], 1, floor_);
      fixed_[branch] = -1;
    }
  }

  const IntegerProgram& program_;
  const IntegerProgramOptions& options_;
  size_t num_rows_;
  std::vector<std::vector<Use>> least_;
  std::vector<int32_t> fixed_;     // By group; -1: free.
  std::vector<int64_t> floor_;     // By row: what must be used at least.
  std::vector<double> price_sum_;  // Of the rows before.
  std::vector<int64_t> used_;      // By row, of choice_.
  std::vector<std::vector<int32_t>> groups_of_row_;
  // By group: whether runs of one option overlap, or are not in order.
  std::vector<bool> overlapping_;
  std::vector<std::vector<double>> reduced_;  // By group and option, as priced.
  std::vector<Move> moves_{};
  std::vector<size_t> broken_{};
  std::vector<int32_t> choice_{};
  int64_t cost_ = 0;  // Of choice_.
  double rounding_ = 0;
  int64_t root_bound_ = 0;
  int64_t open_ = kNone;  // The least bound of what was not looked into.
  bool cut_short_ = false;
  IntegerSolution solution_{};
};

}  // namespace

IntegerSolution SolveIntegerProgram(const IntegerProgram& program,
                                    absl::Span<const int32_t> start,
                                    const IntegerProgramOptions& options) {
  return Solver(program, options).Solve(start);
}

}  // namespace pipeloom::planner
