#include "planner/lower/kept_links.h"

#include <algorithm>
#include <variant>

namespace pipeloom::planner {

SharedLinks KeptLinks(const emulator::StageCostModel& costs,
                      const ExecutionPlan& plan) {
  SharedLinks links = costs.Links();
  const auto is_copy = [](const Instruction& i) {
    return std::holds_alternative<Offload>(i) ||
           std::holds_alternative<Fetch>(i);
  };
  const bool copies = std::any_of(
      plan.programs.begin(), plan.programs.end(), [&](const auto& program) {
        return std::any_of(program.begin(), program.end(), is_copy);
      });
  if (!copies) links.host_bandwidth = {};
  return links;
}

}  // namespace pipeloom::planner
