// The option `--robust` and those that belong to it, for all commands that
// search a schedule.
#ifndef PIPELOOM_CLI_INPUT_ROBUST_FLAGS_H_
#define PIPELOOM_CLI_INPUT_ROBUST_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console/flags.h"
#include "formats/text/json_writer.h"
#include "planner/search/robust_search.h"

namespace pipeloom::cli {

struct RobustFlags {
  bool robust = false;
  double jitter = 0.05;
  double slow_rank = 1.1;
  int64_t samples = 64;
};
void AppendRobustFlags(RobustFlags* values, std::vector<Flag>* flags);

// Returns the disturbances that the flags ask for; absent without --robust.
std::optional<planner::Disturbances> DisturbancesOf(const RobustFlags& flags,
                                                    uint64_t seed);

// The share of a search's total time that is left for the robust choice.
inline constexpr double kRobustShare = 0.3;

// Describe the robust choice, as a line of text and as members of a JSON
// object.
std::string RobustText(const planner::RobustTimes& chosen,
                       const planner::RobustTimes& nominal);
void WriteRobust(const planner::RobustTimes& chosen,
                 const planner::RobustTimes& nominal,
                 formats::JsonWriter* json);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_ROBUST_FLAGS_H_
