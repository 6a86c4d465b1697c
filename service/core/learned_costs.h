// Corrections of a job's costs, learned from measured steps: for each module
// and pass, how much longer tasks took than the uncorrected costs predict.
//
// Inside a report, a task weighs by its predicted time. A new report weighs by
// its number of tasks against at most kMemoryTasks (4096) earlier ones, so that
// the factors follow a machine that changes. Each report's ratio is clamped to
// [1/8, 8].
#ifndef PIPELOOM_SERVICE_CORE_LEARNED_COSTS_H_
#define PIPELOOM_SERVICE_CORE_LEARNED_COSTS_H_

#include <cstdint>

#include "emulator/stage/stage_cost.h"
#include "ir/ids.h"
#include "ir/plan/step_trace.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "pipeloom/v1/service_state.pb.h"

namespace pipeloom::service {

// The factors of one job. Not thread-safe.
class LearnedCosts {
 public:
  explicit LearnedCosts(int32_t num_modules) : modules_(num_modules) {}

  // Learns from the measured trace of a plan with this graph, whose durations
  // were priced with the factors `used`. Spans of tasks that are not in the
  // graph are ignored. Returns the mean of |measured / planned - 1| over the
  // tasks.
  double Learn(const StageGraph& graph, const StepTrace& trace,
               const IdVector<ModuleId, emulator::PassFactors>& used);

  IdVector<ModuleId, emulator::PassFactors> factors() const;

  // Append the factors of each module and pass, with the number of tasks from
  // which they were learned.
  void AppendTo(const ModelSpec& model,
                v1::ReportTraceResponse* response) const;
  void AppendTo(v1::StoredJob* job) const;
  // Restores the factors that AppendTo stored. Returns false if their number of
  // modules is another.
  bool Restore(const v1::StoredJob& job);

 private:
  struct Known {
    double factor = 1;
    int64_t tasks = 0;
  };
  struct Module {
    Known passes[3]{};  // Indexed by Pass.
  };
  IdVector<ModuleId, Module> modules_;
};

// Returns whether some factor differs by more than 2 %, so that planning with
// the other factors is worth while.
bool Differ(const IdVector<ModuleId, emulator::PassFactors>& a,
            const IdVector<ModuleId, emulator::PassFactors>& b);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_LEARNED_COSTS_H_
