// Carries an ExecutionPlan out in simulated time.
//
// Model: each rank executes its program strictly in order. Compute occupies
// the rank for the task's duration. Send and Recv return at once; a transfer
// begins when its Send has been reached, its Recv has been reached and its
// links are free, keeps them busy for the edge's `occupancy` and arrives
// `delay` after it began. WaitRecv blocks until arrival; WaitSend until the
// occupancy is over. ReduceGradients and OptimizerStep take the rank's
// epilogue together. Offload and Fetch run on a copy stream.
// What is left out: docs/emulator_model.md.
//
// For one plan many times, and without a trace: emulator/step_engine.h. For
// one plan with small changes: replay_step.h; with random durations:
// sample_step.h; for all replicas of a job: emulate_cluster.h.
#ifndef PIPELOOM_EMULATOR_EMULATE_STEP_H_
#define PIPELOOM_EMULATOR_EMULATE_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/execution_plan.h"
#include "ir/step_trace.h"

namespace pipeloom::emulator {

enum class LinkSharing {
  kNone,     // Transfers never wait for each other.
  kPerPair,  // One at a time from each rank to each other rank.
  kPerRank,  // One at a time out of each rank, and one at a time into it.
  kPerNic,   // One at a time out of and into each network card (`nic_of_rank`).
  // All transfers of a card at once: each gets 1/n of its rate, n being the
  // larger number of transfers on the card that it leaves and on the one that
  // it reaches.
  kFairNic,
};

// A straggler: everything on the rank, or between two ranks in this direction,
// takes `factor` times as long. Several that meet multiply.
struct SlowRank {
  RankId rank{};
  double factor = 1;
  bool operator==(const SlowRank&) const = default;
};
struct SlowLink {
  RankId from{};
  RankId to{};
  double factor = 1;
  bool operator==(const SlowLink&) const = default;
};

struct EmulateOptions {
  LinkSharing sharing = LinkSharing::kPerPair;
  // Every send blocks its rank until the transfer's occupancy is over.
  bool blocking_sends = false;
  // Spans of waits and transfers and the memory timeline; off, only task
  // spans and the finish are filled in, which is faster.
  bool full_trace = true;
  // Of the copy stream, for Offload and Fetch: a plan does not carry it. 0:
  // copies take no time.
  Bandwidth host_bandwidth{};
  // The network card of each rank, from 0, for kPerNic and kFairNic; empty:
  // each rank has its own. Transfers between ranks of one card or of one node
  // (from 0; empty: each rank is on its own) do not use the cards.
  std::vector<int32_t> nic_of_rank{};
  std::vector<int32_t> node_of_rank{};
  // Nor do those between nodes that are at most so far apart on a ring of
  // `ring_nodes`.
  int32_t ring_hops = 0;
  int32_t ring_nodes = 0;
  // The link to host memory of each rank, from 0: copies of ranks that share
  // one run one at a time. Empty: each rank has its own.
  std::vector<int32_t> host_link_of_rank{};
  std::vector<SlowRank> slow_ranks{};
  std::vector<SlowLink> slow_links{};
};

// FailedPrecondition shows the waiting ranks when the plan deadlocks, or the
// first instruction that names nothing of its rank or comes twice; what else
// ValidateExecutionPlan checks is taken for granted. InvalidArgument names a
// field of the options that does not fit the plan.
// O(instructions log ranks). Deterministic; no global state.
absl::StatusOr<StepTrace> EmulateStep(const ExecutionPlan& plan,
                                      const EmulateOptions& options = {});

// The same for one plan after another in the memory of the plans before: with
// large plans most of the time of EmulateStep is the system's, handing out
// fresh pages. One for each thread.
class StepEmulator {
 public:
  StepEmulator();
  ~StepEmulator();
  StepEmulator(const StepEmulator&) = delete;
  StepEmulator& operator=(const StepEmulator&) = delete;

  // Replaces what `trace` holds and reuses its memory; after an error it holds
  // nothing of use.
  absl::Status Emulate(const ExecutionPlan& plan, const EmulateOptions& options,
                       StepTrace* trace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_EMULATE_STEP_H_
