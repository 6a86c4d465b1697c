#include "emulator/cluster/order_epilogues.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "emulator/step/step_engine.h"
#include "emulator/step/step_program.h"
#include "emulator/step/trace_builder.h"

namespace pipeloom::emulator {
namespace {

// Returns the passes of a trace. Without spans of epilogues, ranks end at 0.
IdVector<RankId, RankPasses> PassesOf(const StepUpdate& update,
                                      const StageGraph& graph,
                                      const StepTrace& trace) {
  IdVector<RankId, RankPasses> passes(update.ranks.size());
  for (const RankId r : passes.ids()) {
    passes[r].last.resize(update.ranks[r].parts.size());
  }
  for (const Span& span : trace.spans) {
    RankPasses& rank = passes[span.rank];
    if (span.kind == SpanKind::kEpilogue) {
      rank.end = (span.start - kStepStart).count();
    }
    if (span.kind != SpanKind::kTask) continue;
    const Task& task = graph.task(span.task);
    if (task.pass == Pass::kForward) continue;
    const auto& parts = update.ranks[span.rank].parts;
    for (size_t p = 0; p < parts.size(); ++p) {
      if (parts[p].stage != task.stage) continue;
      rank.last[p] = {.begin = (span.start - kStepStart).count(),
                      .end = (span.end - kStepStart).count()};
    }
  }
  return passes;
}

IdVector<RankId, Duration> AtLeastOne(
    const StepUpdate& update, const IdVector<RankId, RankPasses>& passes) {
  IdVector<RankId, Duration> epilogues = EpiloguesOf(update, passes);
  for (const RankId r : epilogues.ids()) {
    epilogues[r] = update.expected[r] == kZero
                       ? kZero
                       : std::max(epilogues[r], Nanoseconds(1));
  }
  return epilogues;
}

}  // namespace

IdVector<RankId, Duration> EpiloguesInOrder(const StepUpdate& update,
                                            const StageGraph& graph,
                                            const StepTrace& trace) {
  return AtLeastOne(update, PassesOf(update, graph, trace));
}

StageGraph WithLeastEpilogues(const StageGraph& graph,
                              const StepUpdate& update) {
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (const RankId r : ranks.ids()) {
    ranks[r].epilogue = std::min(ranks[r].epilogue, update.least[r]);
  }
  return graph.WithRanks(std::move(ranks));
}

absl::StatusOr<StepTrace> EmulateInOrder(const StepUpdate& update,
                                         const EmulateOptions& options,
                                         ExecutionPlan* plan) {
  StepProgram program;
  CompileScratch scratch;
  StepTimes times;
  StepEngine engine;
  StepTrace trace;
  PIPELOOM_RETURN_IF_ERROR(CompileStep(*plan, options, &program, &scratch));
  TimesOf(program, *plan, options, &times);
  engine.Load(program, times);
  PIPELOOM_RETURN_IF_ERROR(engine.Run());
  BuildTrace(plan->graph, engine, /*full=*/false, &trace);
  IdVector<RankId, RankPasses> passes = PassesOf(update, plan->graph, trace);
  for (const RankId r : passes.ids()) {
    const RankState& rank = engine.ranks()[static_cast<size_t>(r.value())];
    passes[r].end = std::max(passes[r].end, rank.epilogue_at);
  }
  IdVector<RankId, RankSpec> ranks = plan->graph.ranks();
  const IdVector<RankId, Duration> epilogues = AtLeastOne(update, passes);
  for (const RankId r : ranks.ids()) ranks[r].epilogue = epilogues[r];
  plan->graph = std::move(plan->graph).WithRanks(std::move(ranks));
  TimesOf(program, *plan, options, &times);
  engine.Load(program, times);
  PIPELOOM_RETURN_IF_ERROR(engine.Run());
  BuildTrace(plan->graph, engine, options.full_trace, &trace);
  plan->predicted_step_time = trace.step_time();
  return trace;
}

}  // namespace pipeloom::emulator
