// Files of learned costs (runtime/learned_costs.h).
#ifndef PIPELOOM_CLI_INPUT_LEARNED_FILE_H_
#define PIPELOOM_CLI_INPUT_LEARNED_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "runtime/learned_costs.h"

namespace pipeloom::cli {

// Reads a file of learned costs. Errors name the file.
absl::StatusOr<runtime::LearnedCosts> ReadLearned(const std::string& path);
// Reads the file and applies it to `costs`. Does nothing if `path` is empty.
absl::Status ApplyLearned(const std::string& path,
                          emulator::StageCostModel* costs);
// Multiplies the times of `costs` by the learned factors.
void SetLearned(const runtime::LearnedCosts& learned,
                emulator::StageCostModel* costs);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_LEARNED_FILE_H_
