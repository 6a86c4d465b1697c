#include "planner/orders/zero_bubble_h1.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "planner/orders/pass_timeline.h"

namespace pipeloom::planner {
namespace {

struct Switches {
  bool only_forwards_that_fit = false;  // In the warm-up.
  bool prefer_backward = false;
  bool overflow = false;
};

class Heuristic {
 public:
  Heuristic(int32_t ranks, int32_t microbatches, const PassTimes& times,
            int32_t limit, Switches switches)
      : p_(ranks),
        m_(microbatches),
        limit_(limit),
        switches_(switches),
        line_(ranks, /*chunks=*/1, microbatches, times, limit) {}

  // Returns false if the switches lead to an order that cannot go on.
  bool Run() {
    if (!WarmUp()) return false;
    for (int32_t i = 1; i < m_; ++i) {
      if (!ForwardRound() || !BackwardRound()) return false;
    }
    for (int32_t r = 0; r < p_; ++r) line_.PutAllWeightGrads(r);
    return true;
  }
  const PassTimeline& line() const { return line_; }

 private:
  int32_t Forwards(int32_t r) const {
    return line_.Count(Pass::kForward, r, 0);
  }
  Duration Slack(int32_t r) const {
    return line_.MostWaited() - line_.Waited(r);
  }
  void Fill(Pass pass, int32_t r) {
    line_.Fill(r, line_.Arrival(pass, r, 0), Slack(r), switches_.overflow,
               /*if_long=*/true);
  }

  // Puts all passes up to the first backward of each rank, including it.
  bool WarmUp() {
    for (int32_t r = 0; r < p_; ++r) line_.Put(Pass::kForward, r, 0);
    const std::vector<int32_t> more = MoreForwards();
    for (int32_t r = 0; r < p_; ++r) {
      for (int32_t k = 0; k < more[static_cast<size_t>(r)]; ++k) {
        if (!line_.Put(Pass::kForward, r, 0)) return false;
      }
    }
    for (int32_t r = p_; r-- > 0;) {
      if (!line_.Put(Pass::kBackward, r, 0)) return false;
    }
    return true;
  }

  // Returns the number of forwards to put before the first backward: for each
  // rank fewer than for the one before it, unless those are all.
  std::vector<int32_t> MoreForwards() const {
    const PassTimes& times = line_.times();
    std::vector<int32_t> more(static_cast<size_t>(p_), 0);
    Duration backward_end = line_.FreeAt(p_ - 1) + times.backward;
    for (int32_t r = p_ - 1; r-- > 0;) {
      const Duration arrival = backward_end + times.transfer;
      const int32_t most = std::min(m_ - Forwards(r), limit_ - line_.Held(r));
      Duration free_at = line_.FreeAt(r);
      int32_t& count = more[static_cast<size_t>(r)];
      const auto goes_before = [&] {
        return switches_.only_forwards_that_fit
                   ? free_at + times.forward <= arrival
                   : free_at < arrival;
      };
      for (; count < most && goes_before(); ++count) free_at += times.forward;
      backward_end = std::max(free_at, arrival) + times.backward;
    }
    for (int32_t r = 1; r < p_; ++r) {
      int32_t& count = more[static_cast<size_t>(r)];
      const int32_t before = more[static_cast<size_t>(r) - 1];
      if (Forwards(r) + count < m_ && count >= before) {
        count = std::max(0, std::min(count, before - 1));
      }
    }
    return more;
  }

  // Returns whether rank r, well ahead of the next one, leaves its forward for
  // later.
  bool CanWait(int32_t r) const {
    if (!switches_.prefer_backward || r + 1 >= p_ ||
        Forwards(r) < Forwards(r + 1) + 2) {
      return false;
    }
    const PassTimes& times = line_.times();
    const Duration next_backward =
        line_.FreeAt(r + 1) + times.forward + times.backward + times.transfer;
    if (line_.FreeAt(r) >= next_backward) return true;
    const int32_t no_room = std::max(0, line_.Held(r) + 1 - limit_);
    if (line_.FreeAt(r) + times.forward + no_room * times.weight_grad <=
        next_backward) {
      return false;
    }
    return next_backward - line_.FreeAt(r) <= Slack(r);
  }

  bool ForwardRound() {
    std::vector<bool> goes(static_cast<size_t>(p_));
    for (int32_t r = p_; r-- > 0;) {
      const bool next_goes = r + 1 == p_ || goes[static_cast<size_t>(r) + 1];
      goes[static_cast<size_t>(r)] =
          next_goes && Forwards(r) < m_ && !CanWait(r);
    }
    for (int32_t r = 0; r < p_; ++r) {
      if (!goes[static_cast<size_t>(r)]) continue;
      if (!line_.MakeRoom(r)) return false;
      if (r > 0) Fill(Pass::kForward, r);
      if (!line_.Put(Pass::kForward, r, 0)) return false;
    }
    return true;
  }

  bool BackwardRound() {
    for (int32_t r = p_; r-- > 0;) {
      if (r + 1 < p_) Fill(Pass::kBackward, r);
      if (r == 0 && Forwards(0) == m_) line_.PutAllWeightGrads(0);
      if (!line_.Put(Pass::kBackward, r, 0)) return false;
    }
    return true;
  }

  int32_t p_;
  int32_t m_;
  int32_t limit_;
  Switches switches_;
  PassTimeline line_;
};

}  // namespace

PassPrograms ZeroBubbleH1Programs(int32_t ranks, int32_t microbatches,
                                  const PassTimes& times, int32_t limit) {
  PassPrograms best;
  std::optional<Duration> span;
  for (const bool only_fitting : {true, false}) {
    for (const bool prefer_backward : {true, false}) {
      for (const bool overflow : {true, false}) {
        Heuristic heuristic(ranks, microbatches, times, limit,
                            {only_fitting, prefer_backward, overflow});
        if (!heuristic.Run()) continue;
        if (span.has_value() && *span <= heuristic.line().LongestSpan()) {
          continue;
        }
        span = heuristic.line().LongestSpan();
        best = heuristic.line().programs();
      }
    }
  }
  // Without `prefer_backward` every rank does one forward and one backward in
  // each round, so these programs always run to the end.
  PIPELOOM_CHECK(span.has_value());
  return best;
}

namespace {

absl::StatusOr<RankOrders> OrdersWithin(const char* name, int32_t limit,
                                        const VirtualPipeline& pipeline) {
  if (pipeline.num_segments() > 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is for 1 segment; the pipeline has %d", name,
                        pipeline.num_segments()));
  }
  if (pipeline.num_ranks() == 0 || pipeline.num_microbatches() == 0) {
    return RankOrders(pipeline.num_ranks());
  }
  return ToRankOrders(
      pipeline,
      ZeroBubbleH1Programs(pipeline.num_ranks(), pipeline.num_microbatches(),
                           TypicalTimes(pipeline), limit));
}

}  // namespace

absl::StatusOr<RankOrders> ZeroBubbleH1Orders(const VirtualPipeline& pipeline) {
  return OrdersWithin("zb-h1", pipeline.num_ranks(), pipeline);
}

absl::StatusOr<RankOrders> ZeroBubble2pOrders(const VirtualPipeline& pipeline) {
  return OrdersWithin("zb-2p", 2 * pipeline.num_ranks(), pipeline);
}

}  // namespace pipeloom::planner
