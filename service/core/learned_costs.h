// What measured steps say about a job's costs: by module and pass, how much
// longer tasks took than the uncorrected costs predict.
//
// A report counts by the time its tasks take, and as much as `kMemoryTasks`
// earlier ones do at most, so that the factors follow a machine that changes.
// Factors stay within [1/8, 8]. Not for several threads at a time.
#ifndef PIPELOOM_SERVICE_CORE_LEARNED_COSTS_H_
#define PIPELOOM_SERVICE_CORE_LEARNED_COSTS_H_

#include <cstdint>

#include "emulator/stage/stage_cost.h"
#include "ir/ids.h"
#include "ir/plan/step_trace.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "pipeloom/v1/service_state.pb.h"

namespace pipeloom::service {

class LearnedCosts {
 public:
  explicit LearnedCosts(int32_t num_modules) : modules_(num_modules) {}

  // `trace`: measured, of a plan with this graph, whose durations were priced
  // with `used`. Spans of tasks that the graph has not are passed over. Returns
  // the mean of |measured / planned - 1| over the tasks.
  double Learn(const StageGraph& graph, const StepTrace& trace,
               const IdVector<ModuleId, emulator::PassFactors>& used);

  IdVector<ModuleId, emulator::PassFactors> factors() const;

  // Appends what is known of each module and pass.
  void AppendTo(const ModelSpec& model,
                v1::ReportTraceResponse* response) const;
  void AppendTo(v1::StoredJob* job) const;
  // What AppendTo stored. False: of another number of modules.
  bool Restore(const v1::StoredJob& job);

 private:
  struct Known {
    double factor = 1;
    int64_t tasks = 0;
  };
  struct Module {
    Known passes[3]{};  // By Pass.
  };
  IdVector<ModuleId, Module> modules_;
};

// Whether planning anew by the second is worth while: some factor differs by
// more than 2 %.
bool Differ(const IdVector<ModuleId, emulator::PassFactors>& a,
            const IdVector<ModuleId, emulator::PassFactors>& b);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_LEARNED_COSTS_H_
