#include "service/jobs/job_costs.h"

#include <string>
#include <vector>

#include "base/status_macros.h"

namespace pipeloom::service {
namespace {

constexpr double kMaxFactor = 8;

}  // namespace

IdVector<ModuleId, emulator::PassFactors> FactorsOf(
    const emulator::CostLearner& learned, const ModelSpec& model) {
  std::vector<std::string> modules;
  for (const ModuleSpec& module : model.modules) modules.push_back(module.name);
  return learned.Factors(modules, kMaxFactor);
}

void AppendCorrections(const emulator::CostLearner& learned,
                       const ModelSpec& model,
                       v1::ReportTraceResponse* response) {
  for (const ModuleSpec& module : model.modules) {
    for (const Pass pass :
         {Pass::kForward, Pass::kBackward, Pass::kWeightGrad}) {
      const int64_t tasks = learned.Tasks(module.name, pass);
      if (tasks == 0) continue;
      v1::CostCorrection& c = *response->add_corrections();
      c.set_module(module.name);
      c.set_kind(
          static_cast<v1::TaskKind>(v1::FORWARD + static_cast<int>(pass)));
      c.set_factor(learned.Factor(module.name, pass));
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
