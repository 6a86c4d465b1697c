#include "trace/oplog/op_replay.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"

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

// Makes a replay of a step's log.
class OpReplay::Builder {
 public:
  // `step` may not be changed or destroyed while it is used.
  explicit Builder(const OpLogStep& step) : step_(step) {}

  absl::StatusOr<OpReplay> Build() {
    AddOperations();
    PIPELOOM_RETURN_IF_ERROR(SetTransferTimes());
    LimitJoinedTimes();
    PIPELOOM_RETURN_IF_ERROR(OrderEvents());
    return std::move(replay_);
  }

 private:
  void AddOperations() {
    for (size_t w = 0; w < step_.workers.size(); ++w) {
      std::array<int32_t, kOpKinds> count{};
      Duration end{};  // End of the group before.
      int32_t before = -1;
      for (const Operation& o : step_.workers[w]) {
        const auto i = static_cast<int32_t>(replay_.operations_.size());
        const bool joins = before >= 0 && IsPointToPoint(o.kind) &&
                           starts_.back() == o.start &&
                           IsPointToPoint(replay_.operations_.back().kind);
        if (joins) {
          replay_.groups_.back().end = i + 1;
        } else {
          replay_.groups_.push_back({.first = i,
                                     .end = i + 1,
                                     .before = before,
                                     .gap = std::max(kZero, o.start - end)});
          before = static_cast<int32_t>(replay_.groups_.size()) - 1;
          end = kZero;
        }
        end = std::max(end, o.end());
        const int32_t number = count[static_cast<size_t>(o.kind)]++;
        OwnTime own{
            .kind = o.kind,
            .replica = static_cast<int32_t>(w) / step_.stages,
            .stage = static_cast<int32_t>(w) % step_.stages,
            .microbatch = IsPointToPoint(o.kind) ? number : o.microbatch,
            .time = o.duration};
        if (!IsLocal(o.kind)) meetings_[MeetingOf(own, number)].push_back(i);
        replay_.operations_.push_back(own);
        starts_.push_back(o.start);
        ends_.push_back(o.end());
        group_of_.push_back(before);
      }
    }
  }

  // Communications take the time after the last of their workers has arrived.
  absl::Status SetTransferTimes() {
    for (const auto& [name, members] : meetings_) {
      const OwnTime& first = replay_.operations_[At(members.front())];
      if (members.size() != Expected(first.kind, step_)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "step %d: the %d. %s of replica %d, stage %d is carried out by %d "
            "of %d workers; sends and receives, and calls of a collective, "
            "must match",
            step_.number, std::get<3>(name) + 1,
            std::string(OpName(first.kind)), first.replica, first.stage,
            members.size(), Expected(first.kind, step_)));
      }
      Duration arrived{};
      Duration left = ends_[At(members.front())];
      for (const int32_t i : members) {
        arrived = std::max(arrived, starts_[At(i)]);
        left = std::min(left, ends_[At(i)]);
      }
      for (const int32_t i : members) {
        OwnTime& own = replay_.operations_[At(i)];
        own.time = std::max(
            kZero, (IsPointToPoint(own.kind) ? left : ends_[At(i)]) - arrived);
        transfers_[static_cast<size_t>(own.kind)].push_back(own.time);
      }
    }
    return absl::OkStatus();
  }

  // The end of a group may be another's: a send or receive in it takes at most
  // the median of its kind.
  void LimitJoinedTimes() {
    std::array<Duration, kOpKinds> median{};
    for (size_t k = 0; k < transfers_.size(); ++k) {
      std::vector<Duration>& times = transfers_[k];
      if (times.empty()) continue;
      const auto middle =
          times.begin() + static_cast<int64_t>(times.size() / 2);
      std::nth_element(times.begin(), middle, times.end());
      median[k] = *middle;
    }
    for (const Group& group : replay_.groups_) {
      if (group.end - group.first < 2) continue;
      for (int32_t i = group.first; i < group.end; ++i) {
        OwnTime& own = replay_.operations_[At(i)];
        own.time = std::min(own.time, median[static_cast<size_t>(own.kind)]);
      }
    }
  }

  // Finds an order of starts and ends: a group starts after the end of the one
  // before, and ends after all starts of its communications.
  absl::Status OrderEvents() {
    replay_.meeting_of_.assign(replay_.operations_.size(), -1);
    std::vector<int32_t> missing;               // Starts, by communication.
    std::vector<std::vector<int32_t>> waiting;  // Groups, by communication.
    for (const auto& [name, members] : meetings_) {
      missing.push_back(static_cast<int32_t>(members.size()));
      std::vector<int32_t>& groups = waiting.emplace_back();
      for (const int32_t i : members) {
        replay_.meeting_of_[At(i)] = replay_.num_meetings_;
        groups.push_back(group_of_[At(i)]);
      }
      ++replay_.num_meetings_;
    }
    const size_t n = replay_.groups_.size();
    std::vector<int32_t> left(n, 1);  // Its own start, and its communications.
    std::vector<int32_t> after(n, -1);
    for (size_t g = 0; g < n; ++g) {
      const Group& group = replay_.groups_[g];
      if (group.before >= 0) after[At(group.before)] = static_cast<int32_t>(g);
      for (int32_t i = group.first; i < group.end; ++i) {
        left[g] += replay_.meeting_of_[At(i)] >= 0;
      }
    }
    std::vector<int32_t> ready;
    for (size_t g = 0; g < n; ++g) {
      if (replay_.groups_[g].before < 0)
        ready.push_back(static_cast<int32_t>(g));
    }
    const auto arrive = [&](int32_t g) {
      if (--left[At(g)] > 0) return;
      replay_.events_.emplace_back(g, true);
      if (after[At(g)] >= 0) ready.push_back(after[At(g)]);
    };
    while (!ready.empty()) {
      const int32_t g = ready.back();
      ready.pop_back();
      replay_.events_.emplace_back(g, false);
      const Group& group = replay_.groups_[At(g)];
      for (int32_t i = group.first; i < group.end; ++i) {
        const int32_t m = replay_.meeting_of_[At(i)];
        if (m < 0 || --missing[At(m)] > 0) continue;
        for (const int32_t other : waiting[At(m)]) arrive(other);
      }
      arrive(g);
    }
    if (replay_.events_.size() != 2 * n) {
      for (size_t g = 0; g < n; ++g) {
        if (left[g] == 0) continue;
        const OwnTime& o = replay_.operations_[At(replay_.groups_[g].first)];
        return absl::InvalidArgumentError(absl::StrFormat(
            "step %d: %s of replica %d, stage %d waits for ever in the order "
            "of the log; its sends and receives must be in an order that two "
            "neighbours can carry out",
            step_.number, std::string(OpName(o.kind)), o.replica, o.stage));
      }
    }
    return absl::OkStatus();
  }

  const OpLogStep& step_;
  OpReplay replay_{};
  // Indexed by operation.
  std::vector<Duration> starts_{};
  std::vector<Duration> ends_{};
  std::vector<int32_t> group_of_{};
  std::map<Meeting, std::vector<int32_t>> meetings_{};
  std::array<std::vector<Duration>, kOpKinds> transfers_{};
};

absl::StatusOr<OpReplay> OpReplay::Create(const OpLogStep& step) {
  return Builder(step).Build();
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
