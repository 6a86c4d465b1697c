// Corrections of a cost model, learned from measured steps: for each module and
// pass, how much longer tasks take than priced.
//
// Model. A task i of one module, pass and size takes
//     measured_i = priced_i x factor(module, pass, size, step) x noise_i.
// The noise has a heavy tail: some tasks, and some steps as a whole, straggle.
// The factor drifts slowly over the steps, as clocks and the sharing of a
// machine change, and differs between small and large tasks, as the error of a
// cost model does. A size is a power of 4 of the priced time.
//
// Rule. A step's tasks of one size give one ratio, and the last kSteps (9)
// steps with the module and pass give one ratio for each size, both as Huber's
// M-estimate of the factor in measured = factor x priced: observations weigh by
// their priced time, so that without outliers the estimate is the sum of
// measured over the sum of priced times, which is what the time of a step
// depends on. From 1.345 spreads off the estimate, a spread being 1.4826 times
// the weighted median absolute deviation, an observation pulls no harder than
// one at that distance (Huber, "Robust estimation of a location parameter",
// 1964): 95 % efficient for normal noise, and not moved without bounds by less
// than half of the priced time. The factor of the module and pass is the mean
// over sizes, weighted by their priced times in these steps; a size of fewer
// than kFewTasks (16) tasks, which has no reliable spread, joins the next one.
//
// Why 9 steps. Let the noise of a step's ratio have the variance r^2, and let
// the factor change by a random walk with variance q^2 a step. The mean of the
// last n steps is then off by r^2 / n + q^2 n / 3 in the mean square: least at
// n = sqrt(3) r / q, and at most 1.25 times that at half or twice this n. 9 is
// best for a noise of 5 times the drift of a step. A lasting jump of the factor
// is followed after 5 steps and has no trace after 9; up to 4 straggling steps
// in 9 change little.
//
// The factor holds for every size, also for those never seen. A weight gradient
// that never ran alone has its backward's factor, anything else without
// measurements the factor 1. A backward that recomputes counts only while there
// is none without: its time holds a forward, whose factor is another one.
//
// Results depend on the arguments only: there are no clocks. O(n log n) for n
// spans. Threads: as a value.
#ifndef PIPELOOM_EMULATOR_CALIBRATION_COST_LEARNER_H_
#define PIPELOOM_EMULATOR_CALIBRATION_COST_LEARNER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "emulator/stage/stage_cost.h"
#include "ir/ids.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::emulator {

// Returns the factor of a pass.
double FactorOf(const PassFactors& factors, Pass pass);

class CostLearner {
 public:
  static constexpr size_t kSteps = 9;
  static constexpr int64_t kFewTasks = 16;
  // Ratios are clamped to [1 / kMaxFactor, kMaxFactor].
  static constexpr double kMaxFactor = 1e6;
  // Prices of a job are multiplied by factors in [1 / kMaxCorrection,
  // kMaxCorrection] only: what lies outside was not measured on the job's GPUs,
  // and neither a client's report nor a file may price a job with it.
  static constexpr double kMaxCorrection = 8;

  // Learns from the measured trace of a plan with this graph. `applied`,
  // indexed by the graph's modules, are the factors with which its durations
  // were priced (empty: none), so that they are not counted twice. Traces given
  // with the same `step` are parts of one step; a trace without is a step of
  // its own. Spans of tasks that are not in the graph, or whose priced or
  // measured time is 0, are ignored. Returns the mean of
  // |measured / planned - 1| over the other tasks, 0 if there are none.
  // InvalidArgument, with nothing learned, names a span that ends before it
  // starts, a task with a negative duration, or an applied factor that is not
  // above 0.
  absl::StatusOr<double> Learn(
      const StageGraph& graph, const StepTrace& measured,
      const IdVector<ModuleId, PassFactors>& applied = {},
      std::optional<int64_t> step = std::nullopt);

  // Replaces what is known of a module's pass by a factor without measurements,
  // which holds until there are some. `tasks` is the count that Tasks returns.
  // InvalidArgument if the factor is not in [1 / kMaxFactor, kMaxFactor] or
  // `tasks` is less than 1.
  absl::Status Assume(absl::string_view module, Pass pass, double factor,
                      int64_t tasks);

  // Returns measured over priced time of a module's pass.
  double Factor(absl::string_view module, Pass pass) const;
  // Returns the factors of these modules, each clamped to [1 / most, most].
  IdVector<ModuleId, PassFactors> Factors(
      const std::vector<std::string>& modules, double most = kMaxFactor) const;
  // Returns the number of tasks of a module's pass that were measured.
  int64_t Tasks(absl::string_view module, Pass pass) const;
  bool empty() const { return known_.empty(); }
  bool operator==(const CostLearner&) const = default;

  // Writes everything as text, version 2.
  std::string ToString() const;
  // Parses the text that ToString writes, or that of version 1, which kept a
  // median of each priced time. InvalidArgument names the line.
  static absl::StatusOr<CostLearner> Parse(absl::string_view text);

 private:
  struct Size {
    bool recomputes = false;
    int32_t power = 0;  // The priced time is about 4^power ns.
    auto operator<=>(const Size&) const = default;
  };
  // The ratio of several tasks, of `priced` ns in all.
  struct Ratio {
    double ratio = 1;
    double priced = 0;
    int64_t tasks = 0;
    bool operator==(const Ratio&) const = default;
  };
  struct Step {
    std::optional<int64_t> number{};  // As given to Learn.
    std::map<Size, Ratio> ratios{};   // At least one.
    bool operator==(const Step&) const = default;
  };
  struct Known {
    int64_t tasks = 0;         // Ever measured.
    std::deque<Step> steps{};  // 1 to kSteps; oldest first.
    bool operator==(const Known&) const = default;
  };
  using Key = std::pair<std::string, Pass>;

  static Size SizeOf(double priced, bool recomputes);
  // Returns Huber's estimate of the ratio. REQUIRES: not empty.
  static Ratio Pool(std::vector<Ratio> ratios);
  static double Estimate(const Known& known);
  static absl::StatusOr<CostLearner> ParseVersion1(
      const std::vector<std::string>& lines);
  static absl::StatusOr<CostLearner> ParseVersion2(
      const std::vector<std::string>& lines);

  std::map<Key, Known> known_{};
};

// Returns whether some factor differs by more than 2 %, so that planning with
// the other factors is worth while.
bool Differ(const IdVector<ModuleId, PassFactors>& a,
            const IdVector<ModuleId, PassFactors>& b);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_COST_LEARNER_H_
