// A uniform pipeline under construction: passes are put one after another, each
// as early as it can be, and the ranks' clocks, waits and held activations are
// kept. What the zero-bubble heuristics build their programs on.
//
// Chunks zigzag over the ranks (even ones down, odd ones back up), so with one
// chunk this is a plain pipeline and with two a V. Every chunk of every rank
// takes the same times. An activation is held from its forward until its
// weight gradient.
#ifndef PIPELOOM_PLANNER_ORDERS_PASS_TIMELINE_H_
#define PIPELOOM_PLANNER_ORDERS_PASS_TIMELINE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"
#include "planner/orders/pass_program.h"

namespace pipeloom::planner {

class PassTimeline {
 public:
  // `limit`: activations of a chunk and microbatch that a rank may hold.
  PassTimeline(int32_t ranks, int32_t chunks, int32_t microbatches,
               const PassTimes& times, int32_t limit);

  int32_t num_ranks() const { return static_cast<int32_t>(ranks_.size()); }
  int32_t num_microbatches() const { return microbatches_; }
  const PassTimes& times() const { return times_; }

  // Passes of this kind put so far; the next one's microbatch.
  int32_t Count(Pass pass, int32_t rank, int32_t chunk) const;
  Duration FreeAt(int32_t rank) const { return ranks_[Index(rank)].free_at; }
  int32_t Held(int32_t rank) const { return ranks_[Index(rank)].held; }
  bool HasWeightGrad(int32_t rank) const;
  // Time that the rank has waited since its first pass; the most of any rank.
  Duration Waited(int32_t rank) const { return ranks_[Index(rank)].waited; }
  Duration MostWaited() const { return most_waited_; }
  // From its first pass to its last; the longest of any rank.
  Duration LongestSpan() const;

  // When the next forward or backward has its input from the rank before;
  // nullopt: that is not put yet. 0 where nothing comes from another rank.
  std::optional<Duration> Arrival(Pass pass, int32_t rank, int32_t chunk) const;

  // False, and nothing changed, when the pass cannot be next: there is none
  // left, its input is not put yet, or the rank holds its limit.
  bool Put(Pass pass, int32_t rank, int32_t chunk);
  // The oldest weight gradient that is left. REQUIRES: there is one.
  void PutWeightGrad(int32_t rank);
  void PutAllWeightGrads(int32_t rank);
  // Weight gradients while the rank has no room for one more forward; false
  // when that does not help.
  bool MakeRoom(int32_t rank);
  // Puts weight gradients into the wait before `arrival`: all that fit, then
  // one that does not if a wait remains, which `if_short` decides for one of at
  // most `slack` and `if_long` for a longer one.
  void Fill(int32_t rank, std::optional<Duration> arrival, Duration slack,
            bool if_short, bool if_long);

  const PassPrograms& programs() const { return programs_; }

 private:
  struct Rank {
    Duration first_start{};
    Duration free_at{};
    Duration waited{};
    int32_t held = 0;
    size_t weight_grads = 0;  // Put; as many of `backwards` are done with.
    std::vector<PassStep> backwards{};
  };
  static size_t Index(int32_t i) { return static_cast<size_t>(i); }
  // Place in the chain of all chunks, and back.
  int32_t Position(int32_t rank, int32_t chunk) const;
  int32_t RankAt(int32_t position) const;
  // By pass (forward, backward) and position: when each microbatch's ended.
  std::vector<Duration>& Ends(Pass pass, int32_t position);
  const std::vector<Duration>& Ends(Pass pass, int32_t position) const;
  void Append(const PassStep& step, int32_t rank, Duration start,
              Duration length);

  int32_t chunks_;
  int32_t microbatches_;
  PassTimes times_;
  int32_t limit_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<Duration>> ends_;
  Duration most_waited_{};
  PassPrograms programs_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_PASS_TIMELINE_H_
