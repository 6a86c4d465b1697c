#include "tests/support/sample_step.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/support/random_problem.h"

namespace pipeloom::testing {

SampleStep MakeSampleStep(const StageGraph& graph, uint64_t seed) {
  SampleStep step;
  Random random(seed);
  auto schedule = TimeSchedule(graph, RandomOrders(graph, random));
  PIPELOOM_CHECK(schedule.ok());
  step.plan.job = "sample";
  step.plan.schedule = "random";
  step.plan.graph = graph;
  step.plan.programs.resize(graph.num_ranks());
  step.plan.predicted_step_time = schedule->step_time();
  StepTrace& trace = step.trace;
  trace.num_ranks = graph.num_ranks();
  trace.finish = schedule->finish;
  for (const RankId r : graph.rank_ids()) {
    const RankSpec& rank = graph.rank(r);
    const auto memory = [&](SimTime at, MemoryItem item, Bytes delta) {
      if (delta == Bytes(0)) return;
      trace.memory.push_back(
          {.rank = r, .at = at, .item = item, .delta = delta});
    };
    memory(kStepStart, MemoryItem::kWeights, rank.memory.weights);
    memory(kStepStart, MemoryItem::kGradients, rank.memory.gradients);
    memory(kStepStart, MemoryItem::kOptimizer, rank.memory.optimizer);
    memory(kStepStart, MemoryItem::kOverhead, rank.memory.overhead);
    SimTime end;
    for (const TaskId t : schedule->order[r]) {
      step.plan.programs[r].push_back(Compute{t});
      const Task& task = graph.task(t);
      const SimTime start = schedule->start[t];
      end = start + task.duration;
      trace.spans.push_back({.rank = r, .task = t, .start = start, .end = end});
      memory(start, MemoryItem::kActivations, task.alloc);
      memory(end, MemoryItem::kActivations, -task.free);
      for (const EdgeId e : graph.outgoing(t)) {
        const Dependency& edge = graph.edge(e);
        if (graph.task(edge.to).rank == r) continue;
        trace.spans.push_back({.rank = r,
                               .stream = Stream::kSend,
                               .kind = SpanKind::kTransfer,
                               .edge = e,
                               .start = end,
                               .end = end + edge.delay});
      }
    }
    if (rank.epilogue > kZero) {
      trace.spans.push_back({.rank = r,
                             .kind = SpanKind::kEpilogue,
                             .start = end,
                             .end = end + rank.epilogue});
    }
  }
  return step;
}

StageGraph TwoModuleGraph(int32_t ranks, int32_t microbatches,
                          const std::string& first_name) {
  IdVector<RankId, RankSpec> specs(ranks);
  for (RankSpec& spec : specs) {
    spec.epilogue = Milliseconds(3);
    spec.memory.weights = kGibibyte * 8;
    spec.memory.gradients = kGibibyte * 8;
    spec.memory.optimizer = kGibibyte * 12;
    spec.memory.overhead = kGibibyte * 2;
    spec.memory.limit = kGibibyte * 72;
  }
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  for (int32_t m = 0; m < microbatches; ++m) {
    std::vector<TaskId> chain;
    const auto add = [&](int32_t stage, Pass pass) {
      const bool encoder = stage < ranks;
      Task task{.rank = RankId(stage % ranks),
                .pass = pass,
                .module = ModuleId(encoder ? 0 : 1),
                .stage = StageId(stage),
                .microbatch = MicrobatchId(m)};
      task.duration = Microseconds(encoder ? 700 + 90 * (m % 5) : 1600);
      if (pass == Pass::kForward) task.alloc = Bytes(int64_t{1} << 30);
      if (pass == Pass::kBackward) {
        task.duration += task.duration;
        task.free = Bytes(int64_t{1} << 30);
      }
      chain.push_back(tasks.push_back(task));
    };
    for (int32_t s = 0; s < 2 * ranks; ++s) add(s, Pass::kForward);
    for (int32_t s = 2 * ranks; s-- > 0;) add(s, Pass::kBackward);
    for (size_t i = 0; i + 1 < chain.size(); ++i) {
      Dependency edge{.from = chain[i], .to = chain[i + 1]};
      if (tasks[edge.from].rank != tasks[edge.to].rank) {
        edge.delay = Microseconds(120);
        edge.occupancy = Microseconds(100);
        edge.payload = Bytes(int64_t{64} << 20);
      }
      edges.push_back(edge);
    }
  }
  auto graph = StageGraph::Create("two modules", std::move(specs),
                                  {first_name, "backbone"}, std::move(tasks),
                                  std::move(edges));
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

}  // namespace pipeloom::testing
