// The work of one training step as an immutable DAG of tasks with times,
// memory and transfers. Also the problem format of the schedule search
// ("TaskGraph" files, docs/plan_format.md).
//
// Tasks are numbered in a topological order: every dependency goes from a
// smaller TaskId to a larger one, so one forward sweep visits producers first.
//
//     rank 0:  F0 ---- F1              B0 -- B1
//                \       \            /     /
//     rank 1:     F0 ---- F1 -- B0 -- B1 --
//
// A task starts when its rank is free and, for each incoming dependency, the
// producer's end plus `delay` has passed. A rank holds its static memory all
// the time, `alloc` more from a task's start, and `free` less from its end.
//
// Copies are deep and cost O(tasks + dependencies). Const methods are safe
// from any number of threads.
#ifndef PIPELOOM_IR_PLAN_STAGE_GRAPH_H_
#define PIPELOOM_IR_PLAN_STAGE_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "ir/ids.h"

namespace pipeloom {

// The pass that a task does.
enum class Pass : uint8_t {
  kForward,
  kBackward,    // Input gradient; with the weight gradient when fused.
  kWeightGrad,  // Separate from kBackward when split.
};

// One pass of one stage on one sub-microbatch.
struct Task {
  RankId rank{};
  Pass pass = Pass::kForward;
  ModuleId module{};  // Index into module_names.
  StageId stage{};
  MicrobatchId microbatch{};
  int32_t sub_microbatch = 0;  // Index within its microbatch and module.
  Duration duration{};         // When alone on its rank.
  Bytes alloc{};               // Memory taken when it starts.
  Bytes free{};                // Memory released when it ends.
  bool recomputes = false;  // Whether its duration includes a second forward.
  // Weight gradient: a backward whose communication gaps hide a part of it, and
  // `duration` is the rest; else: ir/plan/pass_pairs.h. None: it runs alone.
  TaskId overlaps{};
  bool operator==(const Task&) const = default;
};

// An edge between two tasks, with the transfer that it stands for.
struct Dependency {
  TaskId from{};
  TaskId to{};
  // Time from the producer's end to the earliest start of the consumer, with
  // the link to itself. Usually 0 on one rank.
  Duration delay{};
  // Part of `delay` in which the transfer keeps its link busy; transfers over
  // one link queue for this time. 0: no contention.
  Duration occupancy{};
  // Size of the tensor that is handed over: rows x width, `payload` bytes. 0
  // bytes: the dependency only orders its tasks.
  Bytes payload{};
  int64_t rows = 0;
  int64_t width = 0;
  bool operator==(const Dependency&) const = default;
};

// Memory that a rank holds throughout the step, itemised, and its limit.
struct RankMemory {
  Bytes limit{};  // 0: no limit.
  Bytes weights{};
  Bytes gradients{};
  Bytes optimizer{};
  Bytes overhead{};  // Context, allocator, workspace.
  Bytes static_bytes() const {
    return weights + gradients + optimizer + overhead;
  }
  bool operator==(const RankMemory&) const = default;
};

// The memory and the epilogue of a rank.
struct RankSpec {
  RankMemory memory{};
  // Time after its last task: the rest of the gradient reduction and the
  // optimizer step. The step ends when the last rank is done with this.
  Duration epilogue{};
  bool operator==(const RankSpec&) const = default;
};

// The task graph of a step.
class StageGraph {
 public:
  // Checks the parts and builds the adjacency lists. InvalidArgument names the
  // first task or dependency at fault: a rank that does not exist, a negative
  // time or size, a dependency that does not go from a smaller to a larger id;
  // or says that all times, or all sizes without the limits, add up to 2^60 or
  // more.
  static absl::StatusOr<StageGraph> Create(
      std::string name, IdVector<RankId, RankSpec> ranks,
      std::vector<std::string> module_names, IdVector<TaskId, Task> tasks,
      IdVector<EdgeId, Dependency> dependencies);

  StageGraph() = default;  // Makes an empty graph.

  const std::string& name() const { return name_; }
  int32_t num_ranks() const { return ranks_.size(); }
  int32_t num_tasks() const { return tasks_.size(); }
  int32_t num_edges() const { return edges_.size(); }
  IdRange<RankId> rank_ids() const { return ranks_.ids(); }
  IdRange<TaskId> task_ids() const { return tasks_.ids(); }
  IdRange<EdgeId> edge_ids() const { return edges_.ids(); }
  const IdVector<RankId, RankSpec>& ranks() const { return ranks_; }
  const RankSpec& rank(RankId id) const { return ranks_[id]; }
  const IdVector<TaskId, Task>& tasks() const { return tasks_; }
  const Task& task(TaskId id) const { return tasks_[id]; }
  const IdVector<EdgeId, Dependency>& edges() const { return edges_; }
  const Dependency& edge(EdgeId id) const { return edges_[id]; }
  const std::vector<std::string>& module_names() const { return module_names_; }

  // Return the edges into and out of a task, sorted by id.
  absl::Span<const EdgeId> incoming(TaskId id) const;
  absl::Span<const EdgeId> outgoing(TaskId id) const;
  // Returns the tasks of a rank, sorted by id.
  absl::Span<const TaskId> tasks_of(RankId rank) const;

  // Returns a copy with `ranks` in place of its ranks. REQUIRES: as many as it
  // has.
  StageGraph WithRanks(IdVector<RankId, RankSpec> ranks) const&;
  StageGraph WithRanks(IdVector<RankId, RankSpec> ranks) &&;

  bool operator==(const StageGraph&) const = default;

 private:
  std::string name_{};
  IdVector<RankId, RankSpec> ranks_{};
  std::vector<std::string> module_names_{};
  IdVector<TaskId, Task> tasks_{};
  IdVector<EdgeId, Dependency> edges_{};
  // Compressed rows: the edges into t are in_[in_offset_[t], in_offset_[t+1]).
  std::vector<EdgeId> in_{};
  std::vector<int32_t> in_offset_{};
  std::vector<EdgeId> out_{};
  std::vector<int32_t> out_offset_{};
  std::vector<TaskId> by_rank_{};
  std::vector<int32_t> rank_offset_{};
};

// Returns 'F', 'B' or 'W'.
char PassLetter(Pass pass);

// Describes a task for messages: "F backbone stage 3 microbatch 2" and, if
// there are several, "sub-microbatch 1".
std::string DescribeTask(const StageGraph& graph, TaskId task);
// The same for a task that is in no graph.
std::string DescribeTask(const Task& task, TaskId id,
                         const std::string& module_name);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_STAGE_GRAPH_H_
