#include "trace/oplog/op_replay.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace pipeloom::trace {
namespace {

bool IsPointToPoint(OpKind kind) {
  return kind == OpKind::kSendForward || kind == OpKind::kReceiveForward ||
         kind == OpKind::kSendBackward || kind == OpKind::kReceiveBackward;
}

// Names a communication: its kind, replica and stage (-1: all), and its number
// among those of the same name.
using Meeting = std::tuple<OpKind, int32_t, int32_t, int32_t>;

Meeting MeetingOf(const OwnTime& o, int32_t number) {
  switch (o.kind) {
    case OpKind::kReceiveForward:
      return {OpKind::kSendForward, o.replica, o.stage - 1, number};
    case OpKind::kReceiveBackward:
      return {OpKind::kSendBackward, o.replica, o.stage + 1, number};
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
      return {o.kind, -1, o.stage, number};
    case OpKind::kEmbedding:
      return {o.kind, o.replica, -1, number};
    case OpKind::kClip:
      return {o.kind, -1, -1, number};
    default:
      return {o.kind, o.replica, o.stage, number};
  }
}

// Returns the number of workers that take part.
size_t Expected(OpKind kind, const OpLogStep& step) {
  if (IsPointToPoint(kind)) return 2;
  if (kind == OpKind::kEmbedding) return step.stages > 1 ? 2 : 1;
  if (kind == OpKind::kClip) return step.workers.size();
  return static_cast<size_t>(step.replicas);
}

size_t At(int32_t index) { return static_cast<size_t>(index); }

}  // namespace

absl::StatusOr<OpReplay> OpReplay::Create(const OpLogStep& step) {
  OpReplay replay;
  std::vector<Duration> starts;
  std::vector<Duration> ends;
  std::vector<int32_t> group_of;
  std::map<Meeting, std::vector<int32_t>> meetings;
  for (size_t w = 0; w < step.workers.size(); ++w) {
    std::array<int32_t, kOpKinds> count{};
    Duration end{};  // End of the group before.
    int32_t before = -1;
    for (const Operation& o : step.workers[w]) {
      const auto i = static_cast<int32_t>(replay.operations_.size());
      const bool joins = before >= 0 && IsPointToPoint(o.kind) &&
                         starts.back() == o.start &&
                         IsPointToPoint(replay.operations_.back().kind);
      if (joins) {
        replay.groups_.back().end = i + 1;
      } else {
        replay.groups_.push_back({.first = i,
                                  .end = i + 1,
                                  .before = before,
                                  .gap = std::max(kZero, o.start - end)});
        before = static_cast<int32_t>(replay.groups_.size()) - 1;
        end = kZero;
      }
      end = std::max(end, o.end());
      const int32_t number = count[static_cast<size_t>(o.kind)]++;
      OwnTime own{.kind = o.kind,
                  .replica = static_cast<int32_t>(w) / step.stages,
                  .stage = static_cast<int32_t>(w) % step.stages,
                  .microbatch = IsPointToPoint(o.kind) ? number : o.microbatch,
                  .time = o.duration};
      if (!IsLocal(o.kind)) meetings[MeetingOf(own, number)].push_back(i);
      replay.operations_.push_back(own);
      starts.push_back(o.start);
      ends.push_back(o.end());
      group_of.push_back(before);
    }
  }

  // Own times of communications.
  std::array<std::vector<Duration>, kOpKinds> transfers;
  for (const auto& [name, members] : meetings) {
    const OwnTime& first = replay.operations_[At(members.front())];
    if (members.size() != Expected(first.kind, step)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "step %d: the %d. %s of replica %d, stage %d is carried out by %d of "
          "%d workers; sends and receives, and calls of a collective, must "
          "match",
          step.number, std::get<3>(name) + 1, std::string(OpName(first.kind)),
          first.replica, first.stage, members.size(),
          Expected(first.kind, step)));
    }
    Duration arrived{};
    Duration left = ends[At(members.front())];
    for (const int32_t i : members) {
      arrived = std::max(arrived, starts[At(i)]);
      left = std::min(left, ends[At(i)]);
    }
    for (const int32_t i : members) {
      OwnTime& own = replay.operations_[At(i)];
      own.time = std::max(
          kZero, (IsPointToPoint(own.kind) ? left : ends[At(i)]) - arrived);
      transfers[static_cast<size_t>(own.kind)].push_back(own.time);
    }
  }
  std::array<Duration, kOpKinds> median{};
  for (size_t k = 0; k < transfers.size(); ++k) {
    std::vector<Duration>& times = transfers[k];
    if (times.empty()) continue;
    const auto middle = times.begin() + static_cast<int64_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    median[k] = *middle;
  }
  for (const Group& group : replay.groups_) {
    if (group.end - group.first < 2) continue;
    for (int32_t i = group.first; i < group.end; ++i) {
      OwnTime& own = replay.operations_[At(i)];
      own.time = std::min(own.time, median[static_cast<size_t>(own.kind)]);
    }
  }

  // An order of starts and ends: a group starts after the end of the one
  // before, and ends after all starts of its communications.
  replay.meeting_of_.assign(replay.operations_.size(), -1);
  std::vector<int32_t> missing;               // Starts, by communication.
  std::vector<std::vector<int32_t>> waiting;  // Groups, by communication.
  for (const auto& [name, members] : meetings) {
    missing.push_back(static_cast<int32_t>(members.size()));
    std::vector<int32_t>& groups = waiting.emplace_back();
    for (const int32_t i : members) {
      replay.meeting_of_[At(i)] = replay.num_meetings_;
      groups.push_back(group_of[At(i)]);
    }
    ++replay.num_meetings_;
  }
  const size_t n = replay.groups_.size();
  std::vector<int32_t> left(n, 1);  // Its own start, and its communications.
  std::vector<int32_t> after(n, -1);
  for (size_t g = 0; g < n; ++g) {
    const Group& group = replay.groups_[g];
    if (group.before >= 0) after[At(group.before)] = static_cast<int32_t>(g);
    for (int32_t i = group.first; i < group.end; ++i) {
      left[g] += replay.meeting_of_[At(i)] >= 0;
    }
  }
  std::vector<int32_t> ready;
  for (size_t g = 0; g < n; ++g) {
    if (replay.groups_[g].before < 0) ready.push_back(static_cast<int32_t>(g));
  }
  const auto arrive = [&](int32_t g) {
    if (--left[At(g)] > 0) return;
    replay.events_.emplace_back(g, true);
    if (after[At(g)] >= 0) ready.push_back(after[At(g)]);
  };
  while (!ready.empty()) {
    const int32_t g = ready.back();
    ready.pop_back();
    replay.events_.emplace_back(g, false);
    const Group& group = replay.groups_[At(g)];
    for (int32_t i = group.first; i < group.end; ++i) {
      const int32_t m = replay.meeting_of_[At(i)];
      if (m < 0 || --missing[At(m)] > 0) continue;
      for (const int32_t other : waiting[At(m)]) arrive(other);
    }
    arrive(g);
  }
  if (replay.events_.size() != 2 * n) {
    for (size_t g = 0; g < n; ++g) {
      if (left[g] == 0) continue;
      const OwnTime& o = replay.operations_[At(replay.groups_[g].first)];
      return absl::InvalidArgumentError(absl::StrFormat(
          "step %d: %s of replica %d, stage %d waits for ever in the order of "
          "the log; its sends and receives must be in an order that two "
          "neighbours can carry out",
          step.number, std::string(OpName(o.kind)), o.replica, o.stage));
    }
  }
  return replay;
}

Duration OpReplay::StepTime(absl::Span<const Duration> own_times,
                            bool gaps) const {
  PIPELOOM_CHECK(own_times.size() == operations_.size());
  std::vector<Duration> start(groups_.size());
  std::vector<Duration> end(groups_.size());
  std::vector<Duration> arrived(At(num_meetings_));  // The last one's start.
  Duration last{};
  for (const auto& [g, is_end] : events_) {
    const Group& group = groups_[At(g)];
    if (!is_end) {
      start[At(g)] = (group.before < 0 ? kZero : end[At(group.before)]) +
                     (gaps ? group.gap : kZero);
      for (int32_t i = group.first; i < group.end; ++i) {
        const int32_t m = meeting_of_[At(i)];
        if (m >= 0) arrived[At(m)] = std::max(arrived[At(m)], start[At(g)]);
      }
      continue;
    }
    Duration done{};
    for (int32_t i = group.first; i < group.end; ++i) {
      const int32_t m = meeting_of_[At(i)];
      done = std::max(
          done, (m < 0 ? start[At(g)] : arrived[At(m)]) + own_times[At(i)]);
    }
    end[At(g)] = done;
    last = std::max(last, done);
  }
  return last;
}

Duration OpReplay::StepTime(bool gaps) const {
  std::vector<Duration> times;
  times.reserve(operations_.size());
  for (const OwnTime& o : operations_) times.push_back(o.time);
  return StepTime(times, gaps);
}

}  // namespace pipeloom::trace
