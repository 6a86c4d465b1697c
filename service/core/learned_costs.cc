#include "service/core/learned_costs.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/numeric.h"

namespace pipeloom::service {
namespace {

constexpr int64_t kMemoryTasks = 4096;
constexpr double kMaxFactor = 8;
constexpr double kNoticeable = 0.02;

double FactorOf(const emulator::PassFactors& factors, Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return factors.forward;
    case Pass::kBackward:
      return factors.backward;
    case Pass::kWeightGrad:
      return factors.weight_grad;
  }
  return 1;
}

}  // namespace

double LearnedCosts::Learn(
    const StageGraph& graph, const StepTrace& trace,
    const IdVector<ModuleId, emulator::PassFactors>& used) {
  struct Sums {
    double measured = 0;
    double priced = 0;
    int64_t tasks = 0;
  };
  IdVector<ModuleId, std::array<Sums, 3>> sums(modules_.size());
  double error = 0;
  int64_t count = 0;
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kTask || !graph.tasks().Contains(span.task)) {
      continue;
    }
    const Task& task = graph.task(span.task);
    if (task.duration <= kZero || span.end <= span.start) continue;
    const double measured = ToSeconds(span.end - span.start);
    const double planned = ToSeconds(task.duration);
    error += std::abs(measured / planned - 1);
    ++count;
    // The duration includes a second forward, so it is not that of the pass
    // alone.
    if (task.recomputes || !modules_.Contains(task.module)) continue;
    Sums& sum = sums[task.module][static_cast<size_t>(task.pass)];
    sum.measured += measured;
    sum.priced += planned / (used.Contains(task.module)
                                 ? FactorOf(used[task.module], task.pass)
                                 : 1);
    ++sum.tasks;
  }
  for (const ModuleId m : modules_.ids()) {
    for (size_t pass = 0; pass < 3; ++pass) {
      const Sums& sum = sums[m][pass];
      if (sum.tasks == 0) continue;
      Known& known = modules_[m].passes[pass];
      const double before = Real(std::min(known.tasks, kMemoryTasks));
      const double ratio =
          std::clamp(sum.measured / sum.priced, 1 / kMaxFactor, kMaxFactor);
      known.factor = (known.factor * before + ratio * Real(sum.tasks)) /
                     (before + Real(sum.tasks));
      known.tasks += sum.tasks;
    }
  }
  return count == 0 ? 0 : error / Real(count);
}

IdVector<ModuleId, emulator::PassFactors> LearnedCosts::factors() const {
  IdVector<ModuleId, emulator::PassFactors> factors;
  for (const Module& module : modules_) {
    factors.push_back({.forward = module.passes[0].factor,
                       .backward = module.passes[1].factor,
                       .weight_grad = module.passes[2].factor});
  }
  return factors;
}

void LearnedCosts::AppendTo(const ModelSpec& model,
                            v1::ReportTraceResponse* response) const {
  for (const ModuleId m : modules_.ids()) {
    for (int pass = 0; pass < 3; ++pass) {
      const Known& known = modules_[m].passes[pass];
      if (known.tasks == 0) continue;
      v1::CostCorrection& c = *response->add_corrections();
      c.set_module(model.modules[m].name);
      c.set_kind(static_cast<v1::TaskKind>(v1::FORWARD + pass));
      c.set_factor(known.factor);
      c.set_tasks(known.tasks);
    }
  }
}

void LearnedCosts::AppendTo(v1::StoredJob* job) const {
  for (const Module& module : modules_) {
    v1::StoredCorrection& c = *job->add_corrections();
    c.set_forward(module.passes[0].factor);
    c.set_backward(module.passes[1].factor);
    c.set_weight_grad(module.passes[2].factor);
    c.set_forward_tasks(module.passes[0].tasks);
    c.set_backward_tasks(module.passes[1].tasks);
    c.set_weight_grad_tasks(module.passes[2].tasks);
  }
}

bool LearnedCosts::Restore(const v1::StoredJob& job) {
  if (job.corrections_size() != modules_.size()) return false;
  for (const ModuleId m : modules_.ids()) {
    const v1::StoredCorrection& c = job.corrections(m.value());
    modules_[m].passes[0] = {c.forward(), c.forward_tasks()};
    modules_[m].passes[1] = {c.backward(), c.backward_tasks()};
    modules_[m].passes[2] = {c.weight_grad(), c.weight_grad_tasks()};
  }
  return true;
}

bool Differ(const IdVector<ModuleId, emulator::PassFactors>& a,
            const IdVector<ModuleId, emulator::PassFactors>& b) {
  if (a.size() != b.size()) return true;
  const auto apart = [](double x, double y) {
    return std::abs(x / y - 1) > kNoticeable;
  };
  for (const ModuleId m : a.ids()) {
    if (apart(a[m].forward, b[m].forward) ||
        apart(a[m].backward, b[m].backward) ||
        apart(a[m].weight_grad, b[m].weight_grad)) {
      return true;
    }
  }
  return false;
}

}  // namespace pipeloom::service
