// Random problems with several ways to run one microbatch: parallel encoders
// that meet in a backbone, weight gradients apart or not, memory given back in
// parts, workspace while a task runs, limits from hopeless to roomy.
#ifndef PIPELOOM_TESTS_PLANNER_BRANCHING_PROBLEMS_H_
#define PIPELOOM_TESTS_PLANNER_BRANCHING_PROBLEMS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::testing {

// The seed's problem; at most `max_tasks` tasks when one microbatch of its
// shape has no more, else that one microbatch.
inline StageGraph BranchingProblem(uint64_t seed, int32_t max_tasks,
                                   bool allow_workspaces = true) {
  Random random(seed ^ 0x7469676874u);
  const auto num_ranks = static_cast<int32_t>(random.Between(1, 3));
  const auto encoders = static_cast<int32_t>(random.Between(0, 2));
  const auto backbone = static_cast<int32_t>(random.Between(1, 2));
  const bool split = random.Below(2) == 0;
  const bool workspaces = random.Below(2) == 0 && allow_workspaces;
  const bool alike = random.Below(3) == 0;
  const int32_t per_microbatch = (encoders + backbone) * (split ? 3 : 2);
  const int32_t microbatches =
      std::max(1, std::min(max_tasks / per_microbatch,
                           static_cast<int32_t>(random.Between(1, 6))));
  struct Stage {
    RankId rank{};
    Duration forward{}, backward{}, weight_grad{};
    int64_t activation = 0;
    int64_t kept = 0;       // Part of it, held until the weight gradient.
    int64_t workspace = 0;  // Held by each task while it runs.
    Duration delay{};
  };
  std::vector<Stage> stages;
  IdVector<RankId, RankSpec> ranks(num_ranks);
  IdVector<RankId, int64_t> one(num_ranks, 0);
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  const auto add = [&](const Stage& stage, Pass pass, int32_t m, int32_t s) {
    const Duration duration = pass == Pass::kForward    ? stage.forward
                              : pass == Pass::kBackward ? stage.backward
                                                        : stage.weight_grad;
    Task task{.rank = stage.rank,
              .pass = pass,
              .module = ModuleId(0),
              .stage = StageId(s),
              .microbatch = MicrobatchId(m),
              .duration = duration};
    if (pass == Pass::kForward) task.alloc = Bytes(stage.activation);
    if (pass == Pass::kBackward) {
      task.free = Bytes(stage.activation - (split ? stage.kept : 0));
    }
    if (pass == Pass::kWeightGrad) task.free = Bytes(stage.kept);
    task.alloc += Bytes(stage.workspace);
    task.free += Bytes(stage.workspace);
    return tasks.push_back(task);
  };
  const auto connect = [&](TaskId from, TaskId to, Duration delay) {
    edges.push_back(
        {.from = from,
         .to = to,
         .delay = tasks[from].rank == tasks[to].rank ? kZero : delay});
  };
  for (int32_t m = 0; m < microbatches; ++m) {
    for (int32_t s = 0; s < encoders + backbone && (!alike || m == 0); ++s) {
      if (m == 0) stages.emplace_back();
      Stage& stage = stages[static_cast<size_t>(s)];
      if (m == 0) {
        stage.rank = RankId(static_cast<int32_t>(random.Below(num_ranks)));
      }
      stage.forward = Microseconds(double(random.Between(0, 9)));
      stage.backward = Microseconds(double(random.Between(0, 9)));
      stage.weight_grad = Microseconds(double(random.Between(0, 9)));
      stage.activation = random.Between(0, 12);
      stage.kept = random.Between(0, stage.activation);
      stage.workspace = workspaces ? random.Between(0, 9) : 0;
      stage.delay = Microseconds(double(random.Between(0, 2)));
    }
    std::vector<TaskId> forward;
    for (int32_t s = 0; s < encoders + backbone; ++s) {
      const Stage& stage = stages[static_cast<size_t>(s)];
      forward.push_back(add(stage, Pass::kForward, m, s));
      if (m == 0) one[stage.rank] += stage.activation;
      for (int32_t e = 0; e < encoders && s == encoders; ++e) {
        connect(forward[static_cast<size_t>(e)], forward.back(), stage.delay);
      }
      if (s > encoders) {
        connect(forward[static_cast<size_t>(s - 1)], forward.back(),
                stage.delay);
      }
    }
    TaskId after = forward.back();
    for (int32_t s = encoders + backbone - 1; s >= 0; --s) {
      const Stage& stage = stages[static_cast<size_t>(s)];
      const TaskId f = forward[static_cast<size_t>(s)];
      const TaskId b = add(stage, Pass::kBackward, m, s);
      connect(after, b, stage.delay);
      if (after != f) connect(f, b, kZero);
      if (s >= encoders) after = b;  // Encoders go back side by side.
      if (split) connect(b, add(stage, Pass::kWeightGrad, m, s), kZero);
    }
  }
  const int64_t tightness = random.Below(4);
  for (const RankId r : ranks.ids()) {
    if (tightness == 3) continue;
    const int64_t low = tightness == 0 ? one[r] / 2 : one[r];
    ranks[r].memory.limit =
        Bytes(1 + low + random.Below(1 + (tightness == 2 ? 2 * one[r] : 4)));
    if (random.Below(4) == 0) {
      ranks[r].epilogue = Microseconds(double(random.Between(0, 9)));
    }
  }
  auto graph = StageGraph::Create("branching", std::move(ranks), {"model"},
                                  std::move(tasks), std::move(edges));
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_BRANCHING_PROBLEMS_H_
