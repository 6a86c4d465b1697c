#include "planner/orders/pass_timeline.h"

#include <algorithm>

#include "base/check.h"

namespace pipeloom::planner {

PassTimeline::PassTimeline(int32_t ranks, int32_t chunks, int32_t microbatches,
                           const PassTimes& times, int32_t limit)
    : chunks_(chunks),
      microbatches_(microbatches),
      times_(times),
      limit_(limit),
      ranks_(Index(ranks)),
      ends_(2 * Index(ranks) * Index(chunks)),
      programs_(ranks) {}

int32_t PassTimeline::Position(int32_t rank, int32_t chunk) const {
  const int32_t p = num_ranks();
  return chunk * p + (chunk % 2 == 0 ? rank : p - 1 - rank);
}

int32_t PassTimeline::RankAt(int32_t position) const {
  const int32_t p = num_ranks();
  return (position / p) % 2 == 0 ? position % p : p - 1 - position % p;
}

std::vector<Duration>& PassTimeline::Ends(Pass pass, int32_t position) {
  return ends_[2 * Index(position) + (pass == Pass::kForward ? 0 : 1)];
}

const std::vector<Duration>& PassTimeline::Ends(Pass pass,
                                                int32_t position) const {
  return ends_[2 * Index(position) + (pass == Pass::kForward ? 0 : 1)];
}

int32_t PassTimeline::Count(Pass pass, int32_t rank, int32_t chunk) const {
  return static_cast<int32_t>(Ends(pass, Position(rank, chunk)).size());
}

bool PassTimeline::HasWeightGrad(int32_t rank) const {
  const Rank& r = ranks_[Index(rank)];
  return r.weight_grads < r.backwards.size();
}

Duration PassTimeline::LongestSpan() const {
  Duration longest = kZero;
  for (const Rank& r : ranks_) {
    longest = std::max(longest, r.free_at - r.first_start);
  }
  return longest;
}

std::optional<Duration> PassTimeline::Arrival(Pass pass, int32_t rank,
                                              int32_t chunk) const {
  const int32_t position = Position(rank, chunk);
  const size_t microbatch = Ends(pass, position).size();
  const bool forward = pass == Pass::kForward;
  const int32_t before = forward ? position - 1 : position + 1;
  if (before < 0) return kZero;
  const auto& ends = before < chunks_ * num_ranks()
                         ? Ends(pass, before)
                         : Ends(Pass::kForward, position);
  if (microbatch >= ends.size()) return std::nullopt;
  // Input from the rank itself is there when the rank is free.
  if (before >= chunks_ * num_ranks() || RankAt(before) == rank) return kZero;
  return ends[microbatch] + times_.transfer;
}

bool PassTimeline::Put(Pass pass, int32_t rank, int32_t chunk) {
  Rank& r = ranks_[Index(rank)];
  const int32_t microbatch = Count(pass, rank, chunk);
  const bool forward = pass == Pass::kForward;
  if (microbatch >= microbatches_ || (forward && r.held >= limit_)) {
    return false;
  }
  const std::optional<Duration> arrival = Arrival(pass, rank, chunk);
  if (!arrival.has_value()) return false;
  const Duration start = std::max(r.free_at, *arrival);
  const PassStep step = {
      .pass = pass, .chunk = chunk, .microbatch = microbatch};
  Append(step, rank, start, forward ? times_.forward : times_.backward);
  Ends(pass, Position(rank, chunk)).push_back(r.free_at);
  if (forward) {
    ++r.held;
  } else {
    r.backwards.push_back(step);
  }
  return true;
}

void PassTimeline::PutWeightGrad(int32_t rank) {
  Rank& r = ranks_[Index(rank)];
  PIPELOOM_CHECK(HasWeightGrad(rank));
  PassStep step = r.backwards[r.weight_grads++];
  step.pass = Pass::kWeightGrad;
  Append(step, rank, r.free_at, times_.weight_grad);
  --r.held;
}

void PassTimeline::PutAllWeightGrads(int32_t rank) {
  while (HasWeightGrad(rank)) PutWeightGrad(rank);
}

bool PassTimeline::MakeRoom(int32_t rank) {
  while (Held(rank) >= limit_) {
    if (!HasWeightGrad(rank)) return false;
    PutWeightGrad(rank);
  }
  return true;
}

void PassTimeline::Fill(int32_t rank, std::optional<Duration> arrival,
                        Duration slack, bool if_short, bool if_long) {
  if (!arrival.has_value()) return;
  while (HasWeightGrad(rank) && FreeAt(rank) + times_.weight_grad <= *arrival) {
    PutWeightGrad(rank);
  }
  const Duration wait = *arrival - FreeAt(rank);
  if (!HasWeightGrad(rank) || wait <= kZero) return;
  if (wait <= slack ? if_short : if_long) PutWeightGrad(rank);
}

void PassTimeline::Append(const PassStep& step, int32_t rank, Duration start,
                          Duration length) {
  Rank& r = ranks_[Index(rank)];
  std::vector<PassStep>& program = programs_[RankId(rank)];
  if (program.empty()) {
    r.first_start = start;
  } else {
    r.waited += start - r.free_at;
    most_waited_ = std::max(most_waited_, r.waited);
  }
  r.free_at = start + length;
  program.push_back(step);
}

}  // namespace pipeloom::planner
