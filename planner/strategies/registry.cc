#include "planner/strategies/registry.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/strategies/classic.h"
#include "planner/strategies/dip/dip_strategy.h"
#include "planner/strategies/disttrain.h"
#include "planner/strategies/megatron_tuned.h"
#include "planner/strategies/nnscaler.h"
#include "planner/strategies/optimus.h"
#include "planner/strategies/pipeloom_strategy.h"

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
    {"zb-2p", MakeZeroBubble2p},
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
