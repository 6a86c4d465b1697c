// Schedules two ranks and two microbatches with the installed library and
// fails unless the answer is the known optimum.
#include <cstdio>

#include "ir/plan/schedule.h"
#include "planner/search/search_graph.h"

int main() {
  using namespace pipeloom;
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  for (int m = 0; m < 2; ++m) {
    const auto add = [&](int rank, Pass pass) {
      return tasks.push_back({.rank = RankId(rank),
                              .pass = pass,
                              .module = ModuleId(0),
                              .stage = StageId(rank),
                              .microbatch = MicrobatchId(m),
                              .duration = Microseconds(1)});
    };
    const TaskId chain[] = {add(0, Pass::kForward), add(1, Pass::kForward),
                            add(1, Pass::kBackward), add(0, Pass::kBackward)};
    for (int i = 0; i < 3; ++i) {
      edges.push_back({.from = chain[i], .to = chain[i + 1]});
    }
  }
  const auto graph = StageGraph::Create("two", IdVector<RankId, RankSpec>(2),
                                        {"model"}, tasks, edges);
  if (!graph.ok()) return 1;
  const auto found = planner::SearchGraph(*graph, 1, {.max_evaluations = 100});
  if (!found.ok()) return 1;
  std::printf("%.0f us\n", ToMicroseconds(found->schedule.step_time()));
  return found->schedule.step_time() == Microseconds(6) ? 0 : 1;
}
