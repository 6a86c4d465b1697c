#include "planner/strategy.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/baselines/gpipe.h"
#include "planner/baselines/interleaved.h"
#include "planner/baselines/megatron.h"
#include "planner/baselines/one_f_one_b.h"
#include "planner/pipeloom_strategy.h"

namespace pipeloom::planner {
namespace {

constexpr absl::string_view kNames[] = {"gpipe", "1f1b", "interleaved",
                                        "megatron", "pipeloom"};

}  // namespace

absl::Span<const absl::string_view> StrategyNames() { return kNames; }

absl::StatusOr<std::unique_ptr<Strategy>> MakeStrategy(absl::string_view name) {
  if (name == "gpipe") return MakeGPipe();
  if (name == "1f1b") return MakeOneFOneB();
  if (name == "interleaved") return MakeInterleaved();
  if (name == "megatron") return MakeMegatron();
  if (name == "pipeloom") return MakePipeloom();
  return absl::InvalidArgumentError(absl::StrCat("schedule \"", name,
                                                 "\" is not known; there are ",
                                                 absl::StrJoin(kNames, ", ")));
}

}  // namespace pipeloom::planner
