// Checks and completes tables of actions.
#ifndef PIPELOOM_ADAPTERS_ACTION_TABLE_H_
#define PIPELOOM_ADAPTERS_ACTION_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "adapters/action.h"

namespace pipeloom::adapters {

// Figures of a checked table.
struct TableShape {
  int32_t num_stages = 0;
  int32_t num_microbatches = 0;
  bool has_transfers = false;
  bool has_waits = false;
  std::vector<int32_t> rank_of_stage{};
};

// Checks everything that torch's runtime needs and partly takes for granted:
// - every stage is on one rank and has every microbatch exactly once: one
//   forward, and one whole backward or an input and a weight gradient;
// - a backward after its forward, a weight gradient after its input gradient;
// - every stage goes forward through its microbatches in ascending order;
// - with transfers: each output that crosses ranks is sent after it is
//   computed, received before it is needed, once each, in the same order on
//   both ends of each pair of ranks and direction of data;
// - with waits: each send has one, behind it;
// - the ranks can run to the end, where a receive lasts until its send and a
//   wait until its receive, as in torch's dry run: with NCCL, receives posted
//   ahead of sends on both ranks hang.
// FailedPrecondition names rank, column and action of the first violation.
// InvalidArgument: more than 2^20 actions, or stages or microbatches beyond
// 2^16. O(actions log actions).
absl::Status CheckTable(const ActionTable& table, TableShape* shape);

// Adds transfers to the table as torch's own lowering places them: a send
// behind its producer, the receive on the other rank at the same moment of a
// walk over the ranks in turns, so that channels match. Whole backwards and
// input gradients send; an overlapped pair waits for both inputs and sends both
// outputs behind. REQUIRES: passes CheckTable and has no transfers, which
// FailedPrecondition says.
absl::Status AddTransfers(ActionTable* table);

// Adds a wait for every send, as torch 2.15's own lowering places them and its
// runtime demands: of an output behind the backward of its stage and
// microbatch, by when the other rank has used it; of a gradient at the end.
// REQUIRES: passes CheckTable, has transfers and no waits.
absl::Status AddWaits(ActionTable* table);

// Merges adjacent input and weight gradients of a stage and microbatch into one
// whole backward.
void MergeBackwards(ActionTable* table);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_ACTION_TABLE_H_
