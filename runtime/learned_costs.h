// What measured steps say of planned times: measured over planned, by module,
// pass and shape, for planning the next steps with.
//
// The shape of a task stands in no plan; tasks of one module and pass that were
// priced alike are of one shape. A step gives each shape one observation, the
// median over its tasks. A shape is judged by the median of its last
// kRemembered observations, so that a straggling step moves nothing and what is
// old fades; a shape not seen for kForgottenAfter steps is forgotten.
//
// One file keeps it (its text form). Threads: as a value.
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

class LearnedCosts {
 public:
  static constexpr size_t kRemembered = 9;
  static constexpr int64_t kForgottenAfter = 1000;

  // One step. `applied` are the costs that the plan was made with already
  // (none: null), so that they are not counted twice. A task without a
  // duration or a span tells nothing.
  void Learn(const ExecutionPlan& plan, const StepTrace& measured,
             const LearnedCosts* applied = nullptr);

  // Measured over priced for a module's pass: the mean over its shapes by their
  // priced time. Of a weight gradient that never ran alone, the backward's. 1:
  // nothing is known of it.
  double Factor(absl::string_view module, Pass pass) const;
  int64_t steps() const { return steps_; }
  bool empty() const { return shapes_.empty(); }
  bool operator==(const LearnedCosts&) const = default;

  std::string ToString() const;
  // InvalidArgument names the line.
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

  int64_t steps_ = 0;  // Learned from.
  std::map<Key, Shape> shapes_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_LEARNED_COSTS_H_
