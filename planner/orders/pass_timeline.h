// A uniform pipeline under construction, on which the zero-bubble heuristics
// build their programs: passes are put one after another, each as early as it
// can be, and the ranks' clocks, waits and held activations are kept.
//
// Chunks zigzag over the ranks (even ones down, odd ones back up), so with one
// chunk this is a plain pipeline, and with two a V. Every chunk of every rank
// takes the same times. An activation is held from its forward until its weight
// gradient.
#ifndef PIPELOOM_PLANNER_ORDERS_PASS_TIMELINE_H_
#define PIPELOOM_PLANNER_ORDERS_PASS_TIMELINE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"
#include "planner/orders/pass_program.h"

namespace pipeloom::planner {

// The pipeline with the passes put so far.
class PassTimeline {
 public:
  // Begins without any pass. `limit` is the most activations, of one chunk and
  // microbatch each, that a rank may hold.
  PassTimeline(int32_t ranks, int32_t chunks, int32_t microbatches,
               const PassTimes& times, int32_t limit);

  int32_t num_ranks() const { return static_cast<int32_t>(ranks_.size()); }
  int32_t num_microbatches() const { return microbatches_; }
  const PassTimes& times() const { return times_; }

  // Returns the number of passes of this kind put so far, which is the next
  // one's microbatch.
  int32_t Count(Pass pass, int32_t rank, int32_t chunk) const;
  // Returns when the rank is free after its last pass.
  Duration FreeAt(int32_t rank) const { return ranks_[Index(rank)].free_at; }
  // Returns the number of activations that the rank holds.
  int32_t Held(int32_t rank) const { return ranks_[Index(rank)].held; }
  // Returns whether a weight gradient of the rank is left.
  bool HasWeightGrad(int32_t rank) const;
  // Returns the time that the rank has waited since its first pass, and the
  // most that any rank has.
  Duration Waited(int32_t rank) const { return ranks_[Index(rank)].waited; }
  Duration MostWaited() const { return most_waited_; }
  // Returns the longest time of any rank from its first pass to its last.
  Duration LongestSpan() const;

  // Returns when the input of the next forward or backward arrives from the
  // rank before; nullopt if that pass is not put yet, 0 if nothing comes from
  // another rank.
  std::optional<Duration> Arrival(Pass pass, int32_t rank, int32_t chunk) const;

  // Puts the next pass of this kind. Returns false and changes nothing if it
  // cannot be next: none is left, its input is not put yet, or the rank holds
  // its limit.
  bool Put(Pass pass, int32_t rank, int32_t chunk);
  // Puts the oldest weight gradient that is left. REQUIRES: there is one.
  void PutWeightGrad(int32_t rank);
  void PutAllWeightGrads(int32_t rank);
  // Puts weight gradients while the rank has no room for one more forward;
  // returns false if that does not help.
  bool MakeRoom(int32_t rank);
  // Puts weight gradients into the wait before `arrival`: all that fit, and
  // then, if a wait remains, one that does not fit. For a wait of at most
  // `slack` `if_short` decides whether to put that one, for a longer wait
  // `if_long`.
  void Fill(int32_t rank, std::optional<Duration> arrival, Duration slack,
            bool if_short, bool if_long);

  const PassPrograms& programs() const { return programs_; }

 private:
  struct Rank {
    Duration first_start{};
    Duration free_at{};
    Duration waited{};
    int32_t held = 0;
    // Number put; they belong to the first ones of `backwards`.
    size_t weight_grads = 0;
    std::vector<PassStep> backwards{};
  };
  static size_t Index(int32_t i) { return static_cast<size_t>(i); }
  // Returns the place in the chain of all chunks, and the rank at a place.
  int32_t Position(int32_t rank, int32_t chunk) const;
  int32_t RankAt(int32_t position) const;
  // Returns the ends of all microbatches put so far for a pass (forward or
  // backward) at a position.
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
