#include "planner/memory/integer_program.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <functional>
#include <limits>
#include <utility>

#include "planner/memory/program_runs.h"
#include "planner/memory/range_minimum.h"

namespace pipeloom::planner {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
// Rounds between two repairs.
constexpr int32_t kRepairEvery = 10;
// Rounds without a better bound until steps are halved.
constexpr int32_t kPatience = 4;

}  // namespace

class IntegerProgramSolver::Impl : private ProgramRuns {
 public:
  explicit Impl(const IntegerProgram* program) : program_(program) {
    if (program == nullptr) return;
    Begin(program->limits);
    for (const IntegerProgram::Group& group : program->groups) {
      ProgramRuns::AddGroup(group);
      GroupAdded();
    }
  }

  void Begin(absl::Span<const int64_t> limits) {
    ProgramRuns::Begin(limits);
    reduced_.clear();
    fixed_.clear();
    has_floor_ = false;
    floor_.assign(num_rows(), 0);
    price_sum_.assign(num_rows() + 1, 0);
    prices_.assign(num_rows(), 0);
    used_.assign(num_rows() + 1, 0);
  }
  void AddGroup(absl::Span<const int64_t> costs) {
    ProgramRuns::AddGroup(costs);
    GroupAdded();
  }
  using ProgramRuns::AddRun;
  using ProgramRuns::SetCosts;

  IntegerSolution Solve(absl::Span<const int32_t> start,
                        const IntegerProgramOptions& options) {
    options_ = options;
    solution_ = {};
    open_ = kNone;
    root_bound_ = 0;
    cut_short_ = false;
    if (program_ != nullptr) SetCosts(*program_);
    for (size_t j = 0; j < reduced_.size(); ++j) {
      reduced_[j] = static_cast<double>(cost_of()[j]);
    }
    // Only the tree needs the least use; otherwise it stays zero.
    if (options.max_nodes > 0 && !has_floor_) {
      has_floor_ = true;
      for (size_t g = 0; g < num_groups(); ++g) AddLeast(g, 1);
    }
    if (!FloorFits()) {
      solution_.optimal = true;
      return solution_;
    }
    if (start.size() == num_groups()) {
      choice_.assign(start.begin(), start.end());
      const bool fits = Measure();
      if (fits && !options.keeps_start) Improve();
      if (fits) Keep();
      if (fits ? options.keeps_start : options.needs_start) return solution_;
    }
    Visit(prices_, options_.root_rounds, 0);
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
  // A switch of a run's group to an option that uses less of the run's rows.
  struct Saving {
    // Added reduced cost for each unit that is used less.
    double value = -std::numeric_limits<double>::infinity();
    int32_t group = 0;
    int32_t option = -1;
    int32_t index = 0;  // The index of the run.
    int32_t from = 0;   // The group's option when the row's repair began.
  };

  // Returns whether the answer so far has to do.
  bool IsOver() const {
    return solution_.feasible && options_.is_over != nullptr &&
           (*options_.is_over)();
  }
  void GroupAdded() {
    reduced_.resize(num_options());
    fixed_.push_back(-1);
  }
  double ReducedOf(size_t g, int32_t j) const {
    return reduced_[OptionAt(g, j)];
  }
  // Returns how much more option j uses there than the choice does.
  int64_t MoreAt(size_t g, int32_t j, size_t row) const {
    const Run* run = RunAt(g, row);
    return run == nullptr ? 0 : AmountOf(*run, j) - AmountOf(*run, choice_[g]);
  }
  static void AddRows(const Run& run, int64_t amount,
                      std::vector<int64_t>& rows) {
    if (amount == 0) return;
    for (int32_t r = run.first_row; r < run.end_row; ++r) rows[at(r)] += amount;
  }
  // Adds the uses of option j, times `sign`, to the least use of the rows.
  void AddUses(size_t g, int32_t j, int64_t sign) {
    for (const Run& run : Runs(g)) {
      AddRows(run, sign * AmountOf(run, j), floor_);
    }
  }
  void AddLeast(size_t g, int64_t sign) {
    for (const Run& run : Runs(g)) {
      int64_t least = AmountOf(run, 0);
      for (int32_t j = 1; j < NumOptions(g); ++j) {
        least = std::min(least, AmountOf(run, j));
      }
      AddRows(run, sign * least, floor_);
    }
  }
  bool FloorFits() const {
    return std::equal(floor_.begin(), floor_.end(), limits().begin(),
                      std::less_equal<>());
  }

  // ---- Answers. `choice_` and `used_` belong together.

  // Fills in used_ and cost_; returns whether all limits hold.
  bool Measure() {
    std::fill(used_.begin(), used_.end(), 0);
    cost_ = 0;
    for (size_t g = 0; g < choice_.size(); ++g) {
      for (const Run& run : Runs(g)) {
        const int64_t amount = AmountOf(run, choice_[g]);
        used_[at(run.first_row)] += amount;
        used_[at(run.end_row)] -= amount;
      }
      cost_ += OptionCost(g, choice_[g]);
    }
    bool fits = true;
    int64_t running = 0;
    for (size_t r = 0; r < num_rows(); ++r) {
      running += used_[r];
      used_[r] = running;
      fits = fits && running <= limits()[r];
    }
    return fits;
  }
  void Switch(size_t g, int32_t option) {
    for (const Run& run : Runs(g)) {
      AddRows(run, AmountOf(run, option) - AmountOf(run, choice_[g]), used_);
    }
    cost_ += OptionCost(g, option) - OptionCost(g, choice_[g]);
    choice_[g] = option;
  }
  // Returns whether the switch breaks no limit that it would raise the use of.
  bool MaySwitch(size_t g, int32_t option) const {
    for (const Run& run : Runs(g)) {
      const int64_t more = AmountOf(run, option) - AmountOf(run, choice_[g]);
      if (more <= 0) continue;
      for (int32_t r = run.first_row; r < run.end_row; ++r) {
        if (used_[at(r)] + more > limits()[at(r)]) return false;
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
  // Makes the choice keep the limits, row after row: switches groups to options
  // that use less of the row, those first that cost least for each unit at the
  // present prices. Returns whether it succeeded.
  bool Repair() {
    Measure();
    for (size_t r = 0; r < num_rows(); ++r) {
      if (used_[r] <= limits()[r]) continue;
      // A heap of the groups' best moves suffices, as few moves are taken.
      saving_.clear();
      for (const int32_t index : RunsOf(r)) {
        const Run& run = RunNumber(index);
        const size_t g = at(run.group);
        const int32_t from = choice_[g];
        if (AmountOf(run, from) <= run.least || fixed_[g] >= 0) continue;
        saving_.push_back(NextSaving(run, {.index = index, .from = from}));
      }
      std::make_heap(saving_.begin(), saving_.end(), IsAfter);
      while (used_[r] > limits()[r] && !saving_.empty()) {
        std::pop_heap(saving_.begin(), saving_.end(), IsAfter);
        const Saving move = saving_.back();
        saving_.pop_back();
        const Run& run = RunNumber(move.index);
        const size_t g = at(move.group);
        if (AmountOf(run, move.option) < AmountOf(run, choice_[g]) &&
            MaySwitch(g, move.option)) {
          Switch(g, move.option);
        }
        const Saving next = NextSaving(run, move);
        if (next.option < 0) continue;
        saving_.push_back(next);
        std::push_heap(saving_.begin(), saving_.end(), IsAfter);
      }
      if (used_[r] > limits()[r]) return false;
    }
    return true;
  }
  // Returns the run's next option after `last`, by value and index, that uses
  // less of its rows than last.from does; its `option` is -1 if there is none.
  Saving NextSaving(const Run& run, const Saving& last) const {
    const size_t g = at(run.group);
    const double* reduced = reduced_.data() + first_option(g);
    const int64_t* amounts = AmountsOf(run);
    const int64_t from_amount = amounts[last.from];
    const double from_reduced = reduced[last.from];
    Saving next{.value = std::numeric_limits<double>::infinity(),
                .group = run.group,
                .index = last.index,
                .from = last.from};
    for (int32_t j = 0; j < NumOptions(g); ++j) {
      const int64_t less = from_amount - amounts[j];
      if (less <= 0) continue;
      const double value =
          (reduced[j] - from_reduced) / static_cast<double>(less);
      if (value < last.value || (value == last.value && j <= last.option)) {
        continue;
      }
      if (value < next.value) {
        next.value = value;
        next.option = j;
      }
    }
    return next;
  }
  static bool IsAfter(const Saving& a, const Saving& b) {
    if (a.value != b.value) return a.value > b.value;
    return a.group != b.group ? a.group > b.group : a.option > b.option;
  }
  // Switches to cheaper options that fit, those first that are worth most at
  // the present prices.
  void Improve() {
    room_.Fill(num_rows(), [&](size_t r) { return limits()[r] - used_[r]; });
    moves_.clear();
    for (size_t g = 0; g < choice_.size(); ++g) {
      if (fixed_[g] >= 0) continue;
      const int32_t now = choice_[g];
      const size_t first = moves_.size();
      for (int32_t j = 0; j < NumOptions(g); ++j) {
        if (OptionCost(g, j) < OptionCost(g, now)) {
          moves_.push_back({ReducedOf(g, j) - ReducedOf(g, now),
                            static_cast<int32_t>(g), j});
        }
      }
      if (moves_.size() == first) continue;
      // Most moves fit neither now nor later, as others take room too.
      for (const Run& run : Runs(g)) {
        const int64_t most =
            AmountOf(run, now) + room_.Of(at(run.first_row), at(run.end_row));
        moves_.erase(std::remove_if(moves_.begin() + first, moves_.end(),
                                    [&](const Move& move) {
                                      return AmountOf(run, move.option) > most;
                                    }),
                     moves_.end());
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

  // Switches to a cheaper option that breaks limits if a dearer option of
  // another group repairs all of them for less. Passes over all groups until a
  // pass gains nothing.
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
    for (const Run& run : Runs(g)) {
      if (AmountOf(run, option) == 0) continue;
      for (int32_t r = run.first_row; r < run.end_row; ++r) {
        const auto row = static_cast<size_t>(r);
        if (used_[row] > limits()[row]) broken_.push_back(row);
      }
    }
    if (broken_.empty()) return true;
    size_t switched = 0;
    int32_t choice = -1;
    int64_t least = gain;
    for (const int32_t index : RunsOf(broken_[0])) {
      const size_t h = at(RunNumber(index).group);
      if (h == g || fixed_[h] >= 0) continue;
      for (int32_t k = 0; k < NumOptions(h); ++k) {
        const int64_t more = OptionCost(h, k) - OptionCost(h, choice_[h]);
        if (more >= least || k == choice_[h]) continue;
        bool repairs = true;
        for (const size_t row : broken_) {
          repairs = used_[row] + MoreAt(h, k, row) <= limits()[row];
          if (!repairs) break;
        }
        if (!repairs || !MaySwitch(h, k)) continue;
        least = more;
        switched = h;
        choice = k;
      }
    }
    if (choice < 0) {
      Switch(g, from);
      return false;
    }
    Switch(switched, choice);
    return true;
  }

  // ---- Bounds.

  // Computes the costs of the group's options with prices added.
  void Reduce(size_t g) {
    double* reduced = reduced_.data() + first_option(g);
    const int64_t* cost = cost_of().data() + first_option(g);
    const auto num = static_cast<size_t>(NumOptions(g));
    for (size_t j = 0; j < num; ++j) reduced[j] = static_cast<double>(cost[j]);
    for (const Run& run : Runs(g)) {
      const double price =
          price_sum_[at(run.end_row)] - price_sum_[at(run.first_row)];
      if (price == 0) continue;
      const double* weight = WeightsOf(run);
      for (size_t j = 0; j < num; ++j) reduced[j] += weight[j] * price;
    }
  }
  // Computes the bound at these prices, its choice in `choice_`, and costs with
  // prices added.
  double Price(const Prices& prices) {
    double paid = 0;
    for (size_t r = 0; r < num_rows(); ++r) {
      price_sum_[r + 1] = price_sum_[r] + prices[r];
      paid += prices[r] * static_cast<double>(limits()[r]);
    }
    double sum = 0;
    choice_.resize(num_groups());
    for (size_t g = 0; g < num_groups(); ++g) {
      Reduce(g);
      int32_t best = fixed_[g];
      if (best < 0) {
        best = 0;
        for (int32_t j = 1; j < NumOptions(g); ++j) {
          if (ReducedOf(g, j) < ReducedOf(g, best)) best = j;
        }
      }
      choice_[g] = best;
      sum += ReducedOf(g, best);
    }
    rounding_ = 1e-12 * (sum + paid) + 1e-6;
    return sum - paid;
  }
  // Clamps, since where nothing fits prices and bound rise without end.
  static int64_t Rounded(double bound) {
    return static_cast<int64_t>(std::clamp(std::ceil(bound), 0.0, 4e18));
  }
  bool CloseEnough(int64_t bound) const {
    return solution_.feasible &&
           (bound >= solution_.cost ||
            static_cast<double>(solution_.cost) <=
                (1 + options_.gap) * static_cast<double>(bound));
  }

  // Improves the prices and returns the bound; the best are left in `prices`.
  int64_t Bound(Prices& prices, int32_t rounds) {
    Prices best = prices;
    int64_t bound = 0;
    double best_value = -std::numeric_limits<double>::infinity();
    double step = 1;
    int32_t waiting = 0;
    const int32_t most = std::max(rounds, options_.rounds_to_fit);
    for (int32_t round = 0;; ++round) {
      const double value = Price(prices);
      bound = std::max(bound, Rounded(value - rounding_));
      if (value > best_value) {
        best_value = value;
        best = prices;
        waiting = 0;
      } else if (++waiting == kPatience) {
        step /= 2;
        waiting = 0;
      }
      const bool fits = Measure();
      if (fits) Keep();
      if (round == rounds ||
          (round % kRepairEvery == 0 && (round > 0 || !solution_.feasible))) {
        suggested_ = choice_;
        suggested_use_ = used_;
        if (fits || Repair()) {
          Improve();
          Keep();
        }
        // The step below starts from the choice that the prices suggested.
        choice_.swap(suggested_);
        used_.swap(suggested_use_);
      }
      if (CloseEnough(bound) || IsOver()) break;
      if (round >= (solution_.feasible ? rounds : most)) break;
      double length = 0;
      for (size_t r = 0; r < num_rows(); ++r) {
        const auto over =
            static_cast<double>(used_[r]) - static_cast<double>(limits()[r]);
        if (over > 0 || prices[r] > 0) length += over * over;
      }
      if (length == 0) break;
      const double target = solution_.feasible
                                ? static_cast<double>(solution_.cost)
                                : 1.2 * std::abs(best_value) + 1;
      const double scale =
          step * std::max(target - value, 1e-3 * std::abs(target) + 1e-9) /
          length;
      for (size_t r = 0; r < num_rows(); ++r) {
        const auto over =
            static_cast<double>(used_[r]) - static_cast<double>(limits()[r]);
        prices[r] = std::max(0.0, prices[r] + scale * over);
      }
    }
    prices = std::move(best);
    if (solution_.nodes == 1) prices_ = prices;
    if (rounds == options_.root_rounds && solution_.feasible &&
        !CloseEnough(bound) && !IsOver()) {
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
    if (IsOver()) return LeaveOpen(parent_bound);
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
    // Branches on the free group whose two best options are closest.
    size_t branch = num_groups();
    double closest = std::numeric_limits<double>::infinity();
    for (size_t g = 0; g < num_groups(); ++g) {
      if (fixed_[g] >= 0 || NumOptions(g) < 2) continue;
      const double least = ReducedOf(g, choice_[g]);
      double second = std::numeric_limits<double>::infinity();
      for (int32_t j = 0; j < NumOptions(g); ++j) {
        if (j != choice_[g]) second = std::min(second, ReducedOf(g, j));
      }
      if (branch == num_groups() || second - least < closest) {
        closest = second - least;
        branch = g;
      }
    }
    if (branch == num_groups()) {
      // Nothing is left to decide; Bound has kept this choice if it fits.
      if (Measure()) Keep();
      return;
    }
    std::vector<std::pair<double, int32_t>> children;
    const double least = ReducedOf(branch, choice_[branch]);
    for (int32_t j = 0; j < NumOptions(branch); ++j) {
      children.emplace_back(ReducedOf(branch, j) - least, j);
    }
    const double rounding = rounding_;
    std::sort(children.begin(), children.end());
    for (const auto& [more, j] : children) {
      const int64_t child_bound =
          std::max(bound, Rounded(value + more - 2 * rounding));
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
      AddLeast(branch, -1);
      AddUses(branch, j, 1);
      if (FloorFits()) Visit(prices, options_.node_rounds, child_bound);
      AddUses(branch, j, -1);
      AddLeast(branch, 1);
      fixed_[branch] = -1;
    }
  }

  const IntegerProgram* program_;  // Null if given piece by piece.
  IntegerProgramOptions options_{};
  std::vector<double> reduced_{};  // Indexed by option: cost with prices added.
  bool has_floor_ = false;
  std::vector<int32_t> fixed_{};  // Indexed by group; -1 if free.
  std::vector<int64_t> floor_{};  // Indexed by row: least use.
  // Indexed by row: sum of the prices of the rows before.
  std::vector<double> price_sum_{};
  Prices prices_{};  // The root's best prices, for the next program.
  std::vector<int64_t> used_{};  // Indexed by row: use by choice_.
  // The suggestion of a round while its choice is repaired.
  std::vector<int32_t> suggested_{};
  std::vector<int64_t> suggested_use_{};
  std::vector<Move> moves_{};
  RangeMinimum room_{};  // Each row's room when Improve began.
  std::vector<Saving> saving_{};
  std::vector<size_t> broken_{};
  std::vector<int32_t> choice_{};
  int64_t cost_ = 0;  // Cost of choice_.
  double rounding_ = 0;
  int64_t root_bound_ = 0;
  // The least bound of the parts that were not explored.
  int64_t open_ = kNone;
  bool cut_short_ = false;
  IntegerSolution solution_{};
};

IntegerProgramSolver::IntegerProgramSolver(const IntegerProgram& program)
    : impl_(std::make_unique<Impl>(&program)) {}
IntegerProgramSolver::IntegerProgramSolver()
    : impl_(std::make_unique<Impl>(nullptr)) {}
IntegerProgramSolver::~IntegerProgramSolver() = default;

void IntegerProgramSolver::Begin(absl::Span<const int64_t> limits) {
  impl_->Begin(limits);
}
void IntegerProgramSolver::AddGroup(absl::Span<const int64_t> costs) {
  impl_->AddGroup(costs);
}
void IntegerProgramSolver::AddRun(int32_t first_row, int32_t end_row,
                                  absl::Span<const int64_t> amounts) {
  impl_->AddRun(first_row, end_row, amounts);
}
void IntegerProgramSolver::SetCosts(int32_t group,
                                    absl::Span<const int64_t> costs) {
  impl_->SetCosts(group, costs);
}

IntegerSolution IntegerProgramSolver::Solve(
    absl::Span<const int32_t> start, const IntegerProgramOptions& options) {
  return impl_->Solve(start, options);
}

IntegerSolution SolveIntegerProgram(const IntegerProgram& program,
                                    absl::Span<const int32_t> start,
                                    const IntegerProgramOptions& options) {
  return IntegerProgramSolver(program).Solve(start, options);
}

}  // namespace pipeloom::planner
