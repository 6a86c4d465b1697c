#include "tests/emulator/mixed_ranks.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace pipeloom::emulator {
namespace {

bool SamePlace(const Task& a, const Task& b) {
  return a.rank == b.rank && a.pass == b.pass && a.module == b.module &&
         a.stage == b.stage && a.microbatch == b.microbatch &&
         a.sub_microbatch == b.sub_microbatch;
}

absl::Status CheckAlike(const StageGraph& a, const StageGraph& b, size_t kind) {
  const auto fail = [&](const char* what, int32_t index) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "kind %d: %s %d is another than that of kind 0", kind, what, index));
  };
  if (a.num_ranks() != b.num_ranks() || a.num_tasks() != b.num_tasks() ||
      a.num_edges() != b.num_edges()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "kind %d has %d ranks, %d tasks and %d dependencies; kind 0 has %d, %d "
        "and %d",
        kind, b.num_ranks(), b.num_tasks(), b.num_edges(), a.num_ranks(),
        a.num_tasks(), a.num_edges()));
  }
  for (const TaskId t : a.task_ids()) {
    if (!SamePlace(a.task(t), b.task(t))) return fail("task", t.value());
  }
  for (const EdgeId e : a.edge_ids()) {
    if (a.edge(e).from != b.edge(e).from || a.edge(e).to != b.edge(e).to) {
      return fail("dependency", e.value());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StageGraph> MixRanks(absl::Span<const StageGraph* const> kinds,
                                    const std::vector<int32_t>& kind_of_rank) {
  if (kinds.empty()) {
    return absl::InvalidArgumentError("there is no kind of rank");
  }
  const StageGraph& first = *kinds[0];
  for (size_t k = 1; k < kinds.size(); ++k) {
    const absl::Status status = CheckAlike(first, *kinds[k], k);
    if (!status.ok()) return status;
  }
  if (kind_of_rank.size() != static_cast<size_t>(first.num_ranks())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("kind_of_rank has %d entries; the graph has %d ranks",
                        kind_of_rank.size(), first.num_ranks()));
  }
  for (size_t r = 0; r < kind_of_rank.size(); ++r) {
    if (kind_of_rank[r] < 0 ||
        static_cast<size_t>(kind_of_rank[r]) >= kinds.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("kind_of_rank[%d] is %d; there are %d kinds", r,
                          kind_of_rank[r], kinds.size()));
    }
  }
  const auto of = [&](RankId rank) -> const StageGraph& {
    return *kinds[static_cast<size_t>(
        kind_of_rank[static_cast<size_t>(rank.value())])];
  };
  IdVector<RankId, RankSpec> ranks;
  for (const RankId r : first.rank_ids()) ranks.push_back(of(r).rank(r));
  IdVector<TaskId, Task> tasks;
  for (const TaskId t : first.task_ids()) {
    tasks.push_back(of(first.task(t).rank).task(t));
  }
  IdVector<EdgeId, Dependency> edges;
  for (const EdgeId e : first.edge_ids()) {
    edges.push_back(of(first.task(first.edge(e).from).rank).edge(e));
  }
  return StageGraph::Create(first.name(), std::move(ranks),
                            first.module_names(), std::move(tasks),
                            std::move(edges));
}

}  // namespace pipeloom::emulator
