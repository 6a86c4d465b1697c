#include "planner/step/step_types.h"

namespace pipeloom::planner {

double PlanResult::gap_ratio() const {
  if (lower_bound <= kZero) return 0;
  return ToSeconds(predicted.step_time()) / ToSeconds(lower_bound) - 1;
}

double PlanResult::bubble_ratio() const {
  return BubbleRatio(plan.graph, predicted.step_time());
}

double PlanResult::epilogue_ratio() const {
  return EpilogueRatio(plan.graph, predicted.step_time());
}

double PlanResult::mfu() const { return Mfu(plan, predicted.step_time()); }

std::vector<Bytes> PlanResult::peak_bytes() const {
  std::vector<Bytes> peaks;
  for (const MemoryPeak& peak : MemoryPeaks(predicted)) {
    peaks.push_back(peak.total);
  }
  return peaks;
}

}  // namespace pipeloom::planner
