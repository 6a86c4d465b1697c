// Corrections of planned times, learned from measured steps: the ratio of
// measured to planned time for each module, pass and shape, with which the next
// steps are planned.
//
// Plans do not say the shape of a task, so tasks of one module and pass that
// were priced alike count as one shape. A step gives each shape one
// observation, the median over its tasks. The ratio of a shape is the median of
// its last kRemembered observations, so that one straggling step changes
// nothing and old observations lose weight; a shape not seen for
// kForgottenAfter steps is forgotten.
//
// The text form is kept in one file. Threads: as a value.
#ifndef PIPELOOM_RUNTIME_LEARNED_COSTS_H_
#define PIPELOOM_RUNTIME_LEARNED_COSTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::runtime {

// The ratios learned so far; see the top of the file.
class LearnedCosts {
 public:
  static constexpr size_t kRemembered = 9;
  static constexpr int64_t kForgottenAfter = 1000;

  // Learns from one step. `applied` are the learned costs with which the plan
  // was made (null: none), so that they are not counted twice. Tasks without a
  // duration or a span are ignored.
  void Learn(const ExecutionPlan& plan, const StepTrace& measured,
             const LearnedCosts* applied = nullptr);

  // Returns measured over priced time for a module's pass: the mean over its
  // shapes, weighted by their priced time. For a weight gradient that never ran
  // alone, returns the backward's factor; 1 if nothing is known.
  double Factor(absl::string_view module, Pass pass) const;
  // Returns the number of steps learned from.
  int64_t steps() const { return steps_; }
  bool empty() const { return shapes_.empty(); }
  bool operator==(const LearnedCosts&) const = default;

  std::string ToString() const;
  // Parses the text that ToString writes. InvalidArgument names the line.
  static absl::StatusOr<LearnedCosts> Parse(absl::string_view text);

 private:
  struct Key {
    std::string module{};
    Pass pass = Pass::kForward;
    int64_t priced_ns = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Shape {
    int64_t last_step = 0;
    std::deque<double> ratios{};  // Oldest first.
    bool operator==(const Shape&) const = default;
  };

  int64_t steps_ = 0;  // Number of steps learned from.
  std::map<Key, Shape> shapes_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_LEARNED_COSTS_H_
