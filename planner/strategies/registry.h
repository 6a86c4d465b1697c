// The table of scheduling strategies by name.
#ifndef PIPELOOM_PLANNER_STRATEGIES_REGISTRY_H_
#define PIPELOOM_PLANNER_STRATEGIES_REGISTRY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Returns all names, in the order in which `compare` shows them
// (docs/strategies.md): the classic schedules, megatron and megatron-tuned,
// nnscaler, optimus, disttrain, the steps of dip's ablation and dip, pipeloom.
absl::Span<const absl::string_view> StrategyNames();

// Makes the strategy of that name. InvalidArgument lists the known names.
absl::StatusOr<std::unique_ptr<Strategy>> MakeStrategy(absl::string_view name);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_REGISTRY_H_
