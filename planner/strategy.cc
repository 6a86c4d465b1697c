#include "planner/strategy.h"

#include "absl/strings/str_cat.h"

namespace pipeloom::planner {

absl::StatusOr<MemorySchedule> Strategy::MakeMemorySchedule(
    const StageGraph&, const partition::StepMemory&, const Partition&, uint64_t,
    const SearchBudget&) const {
  return absl::UnimplementedError(
      absl::StrCat("schedule ", name(), " does not choose memory itself"));
}

absl::StatusOr<MemorySchedule> Strategy::ImproveMemorySchedule(
    const StageGraph& graph, const partition::StepMemory& memory,
    const Partition& partition, const MemorySchedule&, uint64_t seed,
    const SearchBudget& budget) const {
  return MakeMemorySchedule(graph, memory, partition, seed, budget);
}

}  // namespace pipeloom::planner
