#include "service/jobs/job_costs.h"

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::service {

absl::Status CheckReport(const StepTrace& trace, const StageGraph& graph) {
  if (trace.num_ranks != graph.num_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("trace.num_ranks is %d; the plan has %d",
                        trace.num_ranks, graph.num_ranks()));
  }
  IdVector<TaskId, bool> seen(graph.num_tasks(), false);
  bool takes_time = false;
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    if (span.kind != SpanKind::kTask) continue;
    if (!graph.tasks().Contains(span.task)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("trace.spans[%d].task is %d; it must be in [0, %d)",
                          i, span.task.value(), graph.num_tasks()));
    }
    const RankId rank = graph.task(span.task).rank;
    if (span.rank != rank) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "trace.spans[%d].rank is %d; task %d is on rank %d", i,
          span.rank.value(), span.task.value(), rank.value()));
    }
    if (seen[span.task]) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "trace.spans[%d].task is %d, of which there is a span already", i,
          span.task.value()));
    }
    seen[span.task] = true;
    takes_time |= span.end > span.start;
  }
  if (takes_time) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "trace.spans has no task that takes time; a report needs at least one");
}

IdVector<ModuleId, emulator::PassFactors> FactorsOf(
    const emulator::CostLearner& learned, const ModelSpec& model) {
  std::vector<std::string> modules;
  for (const ModuleSpec& module : model.modules) modules.push_back(module.name);
  return learned.Factors(modules, emulator::CostLearner::kMaxCorrection);
}

void AppendCorrections(const emulator::CostLearner& learned,
                       const ModelSpec& model,
                       v1::ReportTraceResponse* response) {
  const auto factors = FactorsOf(learned, model);
  for (const ModuleId m : model.modules.ids()) {
    const ModuleSpec& module = model.modules[m];
    for (const Pass pass :
         {Pass::kForward, Pass::kBackward, Pass::kWeightGrad}) {
      const int64_t tasks = learned.Tasks(module.name, pass);
      if (tasks == 0) continue;
      v1::CostCorrection& c = *response->add_corrections();
      c.set_module(module.name);
      c.set_kind(
          static_cast<v1::TaskKind>(v1::FORWARD + static_cast<int>(pass)));
      c.set_factor(emulator::FactorOf(factors[m], pass));
      c.set_tasks(tasks);
    }
  }
}

absl::StatusOr<emulator::CostLearner> LearnedOf(const v1::StoredJob& job,
                                                const ModelSpec& model) {
  if (!job.learned().empty()) {
    return emulator::CostLearner::Parse(job.learned());
  }
  emulator::CostLearner learned;
  if (job.corrections_size() != model.modules.size()) return learned;
  for (const ModuleId m : model.modules.ids()) {
    const v1::StoredCorrection& c = job.corrections(m.value());
    const auto assume = [&](Pass pass, double factor, int64_t tasks) {
      return tasks == 0
                 ? absl::OkStatus()
                 : learned.Assume(model.modules[m].name, pass, factor, tasks);
    };
    PIPELOOM_RETURN_IF_ERROR(
        assume(Pass::kForward, c.forward(), c.forward_tasks()));
    PIPELOOM_RETURN_IF_ERROR(
        assume(Pass::kBackward, c.backward(), c.backward_tasks()));
    PIPELOOM_RETURN_IF_ERROR(
        assume(Pass::kWeightGrad, c.weight_grad(), c.weight_grad_tasks()));
  }
  return learned;
}

}  // namespace pipeloom::service
