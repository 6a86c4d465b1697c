// Files of what measured steps say of planned times (runtime/learned_costs.h).
#ifndef PIPELOOM_CLI_INPUT_LEARNED_FILE_H_
#define PIPELOOM_CLI_INPUT_LEARNED_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "runtime/learned_costs.h"

namespace pipeloom::cli {

// Errors name the file.
absl::StatusOr<runtime::LearnedCosts> ReadLearned(const std::string& path);
// Nothing when `path` is empty; else what the file says, for all planning with
// `costs`.
absl::Status ApplyLearned(const std::string& path,
                          emulator::StageCostModel* costs);
void SetLearned(const runtime::LearnedCosts& learned,
                emulator::StageCostModel* costs);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_LEARNED_FILE_H_
