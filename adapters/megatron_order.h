// The orders of Megatron-Core's pipeline schedules, as lists of chunks: +c is a
// forward of the rank's chunk c (from 1), -c a backward; the k-th of each is
// microbatch k. This is the form in which Megatron hands an order to its
// graphed layers; its schedules have no other.
//
//   megatron-order pp 2 vp 1 microbatches 4 group 2
//   rank 0: 1 1 -1 1 -1 1 -1 -1
//   rank 1: 1 -1 1 -1 1 -1 1 -1
//
// `group` is microbatch_group_size_per_vp_stage when the orders are those of
// the stock schedule, which then needs no runner of its own; else 0.
//
// What the format cannot say: docs/integration.md.
#ifndef PIPELOOM_ADAPTERS_MEGATRON_ORDER_H_
#define PIPELOOM_ADAPTERS_MEGATRON_ORDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "adapters/action.h"

namespace pipeloom::adapters {

struct MegatronOrder {
  int32_t pp = 0;
  int32_t vp = 1;
  int32_t num_microbatches = 0;
  int32_t group = 0;  // 0: not the stock schedule.
  std::vector<std::vector<int32_t>> ranks{};
  bool operator==(const MegatronOrder&) const = default;
};

// (microbatch, chunk) in the order of forwards, which Megatron calls the
// schedule table; a chunk from 0.
struct MegatronStep {
  int32_t microbatch = 0;
  int32_t chunk = 0;
  bool operator==(const MegatronStep&) const = default;
};
// Groups of microbatches go through chunk 0, then 1, and so on. REQUIRES:
// positive arguments.
std::vector<MegatronStep> MegatronTable(int32_t num_microbatches, int32_t vp,
                                        int32_t group);

// Returns the number of forwards of a rank before its first backward, at most
// all of them.
int32_t MegatronWarmup(int32_t pp, int32_t rank, int32_t vp,
                       int32_t num_microbatches, int32_t group);

// Returns the answer of Megatron's order functions: 1F1B for vp 1, where
// `group` has no effect, else interleaved. REQUIRES: positive arguments.
MegatronOrder MegatronOrderOf(int32_t pp, int32_t vp, int32_t num_microbatches,
                              int32_t group);

// Returns the stock schedule. InvalidArgument names what Megatron demands to
// run it: pp <= group <= microbatches, and a last group of none or at least pp.
absl::StatusOr<MegatronOrder> StockMegatronOrder(int32_t pp, int32_t vp,
                                                 int32_t num_microbatches,
                                                 int32_t group);

// Returns the table as Megatron's order, and finds its `group`.
// FailedPrecondition: weight gradients apart, overlapped pairs, a placement
// that is not looped (stage s on rank s mod pp, as many on each), backwards of
// a stage that do not ascend, ranks whose forwards differ.
absl::StatusOr<MegatronOrder> ToMegatronOrder(const ActionTable& table);
ActionTable FromMegatronOrder(const MegatronOrder& order);

std::string PrintMegatronOrder(const MegatronOrder& order);
// InvalidArgument names the line, and what it should be.
absl::StatusOr<MegatronOrder> ParseMegatronOrder(absl::string_view text);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_MEGATRON_ORDER_H_
