#include "planner/orders/zero_bubble_v.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "planner/orders/pass_timeline.h"

namespace pipeloom::planner {
namespace {

struct Switches {
  // Before a backward of the second chunk.
  bool overflow_before_backward = false;
  bool overflow_before_forward = false;
};

// How long each rank of an attempt waited; empty if there was no attempt
// before.
using Waits = std::vector<Duration>;

class Attempt {
 public:
  Attempt(int32_t ranks, int32_t microbatches, const PassTimes& times,
          Switches switches, Waits allowed)
      : p_(ranks),
        m_(microbatches),
        switches_(switches),
        allowed_(std::move(allowed)),
        vee_(ranks, /*chunks=*/2, microbatches, times, /*limit=*/2 * ranks) {
    for (const Duration wait : allowed_) {
      most_allowed_ = std::max(most_allowed_, wait);
    }
  }

  // Returns false if it got stuck.
  bool Run() {
    if (!GoDown() || !LevelForwards()) return false;
    for (int32_t i = 0; i < 2 * m_; ++i) {
      if (!BackwardRound() || !ForwardRound()) return false;
    }
    for (int32_t r = 0; r < p_; ++r) vee_.PutAllWeightGrads(r);
    return true;
  }
  const PassTimeline& vee() const { return vee_; }
  Waits waits() const {
    Waits waits;
    for (int32_t r = 0; r < p_; ++r) waits.push_back(vee_.Waited(r));
    return waits;
  }

 private:
  int32_t Forwards(int32_t r, int32_t chunk) const {
    return vee_.Count(Pass::kForward, r, chunk);
  }
  int32_t Backwards(int32_t r, int32_t chunk) const {
    return vee_.Count(Pass::kBackward, r, chunk);
  }
  bool Ready(Pass pass, int32_t r, int32_t chunk) const {
    return vee_.Count(pass, r, chunk) < m_ &&
           vee_.Arrival(pass, r, chunk).has_value();
  }
  void Fill(Pass pass, int32_t r, int32_t chunk, bool overflow) {
    Duration most = vee_.MostWaited();
    if (!allowed_.empty()) {
      most = std::max(most, most_allowed_ - allowed_[static_cast<size_t>(r)]);
    }
    vee_.Fill(r, vee_.Arrival(pass, r, chunk), most - vee_.Waited(r),
              /*if_short=*/false, overflow);
  }

  // Puts the first microbatch down and up. While it is on its way back, more
  // enter, as far as each rank's later microbatches leave room.
  bool GoDown() {
    for (int32_t r = 0; r < p_; ++r) {
      if (!vee_.Put(Pass::kForward, r, 0)) return false;
    }
    for (int32_t r = p_; r-- > 0;) {
      const auto arrival = vee_.Arrival(Pass::kForward, r, 1);
      while (r + 1 < p_ && vee_.Held(r) + 2 + 2 * r <= 2 * p_ &&
             Forwards(r, 0) < m_ &&
             vee_.FreeAt(r) + vee_.times().forward <= *arrival) {
        for (int32_t above = 0; above <= r; ++above) {
          if (!vee_.Put(Pass::kForward, above, 0)) return false;
        }
      }
      if (!vee_.Put(Pass::kForward, r, 1)) return false;
    }
    return true;
  }

  // Puts forwards of both chunks in turns, until every rank has as many as the
  // rank before.
  bool LevelForwards() {
    int32_t chunk = 0;
    for (int32_t r = 1; r < p_; ++r) {
      const auto behind = [&] {
        const int32_t back = Forwards(r - 1, 1);
        return Forwards(r, 0) + Forwards(r, 1) < Forwards(r - 1, 0) + back ||
               (Forwards(r, 1) <= back && back < m_);
      };
      for (; behind(); chunk = 1 - chunk) {
        for (int32_t below = p_; below-- > r;) {
          if (Forwards(below, chunk) < m_ &&
              !vee_.Put(Pass::kForward, below, chunk)) {
            return false;
          }
        }
      }
    }
    return true;
  }

  // Returns the chunk of the rank's next backward: the first chunk if its
  // gradient has come up to this rank.
  int32_t NextBackward(int32_t r) const {
    if (Backwards(r, 0) >= Backwards(r, 1)) return 1;
    const bool up =
        r == p_ - 1 || Ready(Pass::kBackward, r, 0) || Backwards(r, 1) >= m_;
    return up ? 0 : 1;
  }

  bool PutBackward(int32_t r, int32_t chunk) {
    const bool from_other = chunk == 0 ? r < p_ - 1 : r > 0;
    if (from_other) {
      Fill(Pass::kBackward, r, chunk,
           chunk == 0 || switches_.overflow_before_backward);
    }
    return vee_.Put(Pass::kBackward, r, chunk);
  }

  // Puts one backward on every rank: first gradients on their way up, from
  // below.
  bool BackwardRound() {
    std::vector<int32_t> chunk(static_cast<size_t>(p_));
    for (int32_t r = 0; r < p_; ++r) {
      chunk[static_cast<size_t>(r)] = NextBackward(r);
    }
    for (int32_t r = p_; r-- > 0;) {
      if (chunk[static_cast<size_t>(r)] == 0 && !PutBackward(r, 0)) {
        return false;
      }
    }
    for (int32_t r = 0; r < p_; ++r) {
      if (chunk[static_cast<size_t>(r)] == 1 && !PutBackward(r, 1)) {
        return false;
      }
    }
    return true;
  }

  // Returns the chunk of the rank's next forward; -1 if none can go.
  int32_t NextForward(int32_t r) const {
    if (Forwards(r, 1) >= m_) return -1;
    if (Forwards(r, 1) >= Forwards(r, 0)) return 0;
    if (r == p_ - 1 || Ready(Pass::kForward, r, 1)) return 1;
    return Ready(Pass::kForward, r, 0) ? 0 : -1;
  }

  bool ForwardRound() {
    for (int32_t r = 0; r < p_; ++r) {
      const int32_t chunk = NextForward(r);
      if (chunk < 0) continue;
      if (!vee_.MakeRoom(r)) return false;
      const bool from_other = chunk == 0 ? r > 0 : r < p_ - 1;
      if (from_other) {
        Fill(Pass::kForward, r, chunk, switches_.overflow_before_forward);
      }
      if (!vee_.Put(Pass::kForward, r, chunk)) return false;
    }
    return true;
  }

  int32_t p_;
  int32_t m_;
  Switches switches_;
  Waits allowed_;
  Duration most_allowed_{};
  PassTimeline vee_;
};

// Makes one rank of the fixed order.
class FixedRank {
 public:
  FixedRank(int32_t rank, int32_t ranks, int32_t microbatches)
      : r_(rank), p_(ranks), m_(microbatches) {}

  std::vector<PassStep> Program() {
    for (int32_t i = 0; i < 2 * (p_ - r_) - 1; ++i) Forward(0);
    for (int32_t i = 0; i < r_; ++i) {
      Forward(1);
      Forward(0);
    }
    for (int32_t i = 0; i < p_ - r_; ++i) {
      Forward(1);
      BackwardAndWeightGrad(1);
    }
    while (forwards_[1] < forwards_[0] || forwards_[0] < m_) {
      if (forwards_[0] < m_) Forward(0);
      BackwardAndWeightGrad(0);
      Forward(1);
      BackwardAndWeightGrad(1);
    }
    for (int32_t i = 0; i < r_; ++i) {
      Add(Pass::kBackward, 0, backwards_[0]++);
      Add(Pass::kBackward, 1, backwards_[1]++);
    }
    for (int32_t i = 0; i < p_ - r_; ++i) {
      Add(Pass::kBackward, 0, backwards_[0]++);
      Add(Pass::kWeightGrad, 0, weight_grads_[0]++);
    }
    for (const int32_t chunk : {1, 0}) {
      while (weight_grads_[chunk] < backwards_[chunk]) {
        Add(Pass::kWeightGrad, chunk, weight_grads_[chunk]++);
      }
    }
    return std::move(program_);
  }

 private:
  void Add(Pass pass, int32_t chunk, int32_t microbatch) {
    program_.push_back(
        {.pass = pass, .chunk = chunk, .microbatch = microbatch});
  }
  void Forward(int32_t chunk) {
    Add(Pass::kForward, chunk, forwards_[chunk]++);
  }
  void BackwardAndWeightGrad(int32_t chunk) {
    Add(Pass::kBackward, chunk, backwards_[chunk]++);
    Add(Pass::kWeightGrad, chunk, weight_grads_[chunk]++);
  }

  int32_t r_;
  int32_t p_;
  int32_t m_;
  int32_t forwards_[2] = {0, 0};
  int32_t backwards_[2] = {0, 0};
  int32_t weight_grads_[2] = {0, 0};
  std::vector<PassStep> program_{};
};

}  // namespace

PassPrograms FixedZeroBubbleVPrograms(int32_t ranks, int32_t microbatches) {
  const int32_t filled = std::max(2 * ranks - 1, microbatches);
  PassPrograms programs(ranks);
  for (const RankId r : programs.ids()) {
    programs[r] = FixedRank(r.value(), ranks, filled).Program();
  }
  return programs;
}

PassPrograms ZeroBubbleVPrograms(int32_t ranks, int32_t microbatches,
                                 const PassTimes& times) {
  PassPrograms best;
  std::optional<Duration> least_wait;
  for (const bool before_backward : {true, false}) {
    for (const bool before_forward : {true, false}) {
      Waits allowed;
      std::optional<Duration> last_wait;
      for (;;) {
        Attempt attempt(ranks, microbatches, times,
                        {before_backward, before_forward}, allowed);
        if (!attempt.Run()) break;
        const Duration wait = attempt.vee().MostWaited();
        if (last_wait.has_value() && wait >= *last_wait) break;
        last_wait = wait;
        allowed = attempt.waits();
        if (!least_wait.has_value() || wait < *least_wait) {
          least_wait = wait;
          best = attempt.vee().programs();
        }
      }
    }
  }
  if (!least_wait.has_value()) {
    return FixedZeroBubbleVPrograms(ranks, microbatches);
  }
  return best;
}

absl::StatusOr<RankOrders> ZeroBubbleVOrders(const VirtualPipeline& pipeline) {
  if (pipeline.num_segments() > 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("zb-v is for 2 segments; the pipeline has %d",
                        pipeline.num_segments()));
  }
  if (pipeline.num_ranks() == 0 || pipeline.num_microbatches() == 0) {
    return RankOrders(pipeline.num_ranks());
  }
  return ToRankOrders(pipeline, ZeroBubbleVPrograms(pipeline.num_ranks(),
                                                    pipeline.num_microbatches(),
                                                    TypicalTimes(pipeline)));
}

}  // namespace pipeloom::planner
