#include "planner/strategy.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/baselines/classic.h"
#include "planner/baselines/disttrain.h"
#include "planner/baselines/megatron_tuned.h"
#include "planner/baselines/nnscaler.h"
#include "planner/baselines/optimus.h"
#include "planner/dip/dip_strategy.h"
#include "planner/pipeloom_strategy.h"

namespace pipeloom::planner {
namespace {

struct Entry {
  absl::string_view name;
  std::unique_ptr<Strategy> (*make)();
};
constexpr Entry kStrategies[] = {
    {"gpipe", MakeGPipe},
    {"1f1b", MakeOneFOneB},
    {"interleaved", MakeInterleaved},
    {"zb-h1", MakeZeroBubbleH1},
    {"zb-v", MakeZeroBubbleV},
    {"v-half", MakeVHalf},
    {"v-min", MakeVMin},
    {"dualpipe-v", MakeDualPipeV},
    {"megatron", MakeMegatron},
    {"megatron-tuned", MakeMegatronTuned},
    {"nnscaler", MakeNnScaler},
    {"optimus", MakeOptimus},
    {"disttrain", MakeDistTrain},
    {"dip-partition", MakeDipPartition},
    {"dip-interleave", MakeDipInterleave},
    {"dip-order", MakeDipOrder},
    {"dip", MakeDip},
    {"pipeloom", MakePipeloom},
};

}  // namespace

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

absl::Span<const absl::string_view> StrategyNames() {
  static const auto* const kNames = [] {
    auto* names = new std::vector<absl::string_view>;
    for (const Entry& entry : kStrategies) names->push_back(entry.name);
    return names;
  }();
  return *kNames;
}

absl::StatusOr<std::unique_ptr<Strategy>> MakeStrategy(absl::string_view name) {
  for (const Entry& entry : kStrategies) {
    if (entry.name == name) return entry.make();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("schedule \"", name, "\" is not known; there are ",
                   absl::StrJoin(StrategyNames(), ", ")));
}

}  // namespace pipeloom::planner
