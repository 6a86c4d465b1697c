// The lessons of one planned step for the search of another of the same job and
// partition: when each task ran, how much of its activations it held, and how
// much room boundary tensors took. Used by planner/step/carried_step.h.
#ifndef PIPELOOM_IR_PLAN_CARRIED_STEP_H_
#define PIPELOOM_IR_PLAN_CARRIED_STEP_H_

#include <cstdint>
#include <vector>

#include "base/strong_id.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom {

// A planned step, as far as it can be carried over. Immutable.
struct CarriedStep {
  // The forwards, or the other passes, of one module in one microbatch.
  struct Segment {
    ModuleId module{};
    bool backward = false;
    double start = 0;  // Mean start of its tasks as a share of the step.
    bool operator==(const Segment&) const = default;
  };
  // One pass of one stage on one sub-microbatch.
  struct Place {
    StageId stage{};
    Pass pass = Pass::kForward;
    int32_t sub_microbatch = 0;
    float start = 0;  // As a share of the step.
    // For a forward: the bytes that stay until its backward, divided by those
    // that would stay with everything kept.
    float held = 1;
    bool operator==(const Place&) const = default;
  };
  // Segments of each microbatch, sorted by start. Microbatches are sorted by
  // the work of their forwards, the most first.
  std::vector<std::vector<Segment>> microbatches{};
  // Indexed as `microbatches`; places are sorted by stage, pass and
  // sub-microbatch.
  std::vector<std::vector<Place>> places{};
  // Indexed as `microbatches`: the time of their forwards.
  std::vector<Duration> work{};
  // Indexed by rank: what the limit was lowered by for boundary tensors.
  IdVector<RankId, Bytes> room{};
  // The time of the step's quick plan (planner/step/rival_plans.h) as a
  // multiple of the step; 0 if none was made, or if it was a step of a warm-up
  // and the quick plans of its steps did not all lose by far.
  double quick_ratio = 0;
  // How much longer the search's first answer became when its weight gradients,
  // which the search saw in gaps, were put there (planner/step/improve_step.h),
  // as a multiple of the step that the search saw; 0 if that is not known.
  double refined_ratio = 0;
  bool operator==(const CarriedStep&) const = default;
};

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_CARRIED_STEP_H_
