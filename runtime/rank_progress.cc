#include "runtime/rank_progress.h"

#include <vector>

#include "absl/strings/str_format.h"

namespace pipeloom::runtime {

std::string DescribePlace(const ExecutionPlan& plan, RankId rank,
                          uint64_t position) {
  const std::vector<Instruction>& program = plan.programs[rank];
  if (position >= program.size()) {
    return absl::StrFormat("rank %d, step %d, at its end", rank.value(),
                           plan.step);
  }
  return absl::StrFormat("rank %d, step %d, instruction %d (%s)", rank.value(),
                         plan.step, position,
                         DescribeInstruction(program[position]));
}

}  // namespace pipeloom::runtime
