#include "ir/check/check_times.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/overloaded.h"

namespace pipeloom {
namespace {

// The conditions of a run.
struct Conditions {
  bool channels = true;         // Transfers of a pair of ranks queue.
  bool blocking_sends = false;  // A send lasts for its occupancy.
  bool slow_copies = false;     // A copy lasts as long as its forward.
  Bandwidth host_bandwidth{};   // Else of copies; 0: they take no time.
};

// Runs the programs by the rules of docs/plan_format.md.
class TimedRun {
 public:
  TimedRun(const ExecutionPlan& plan, const Conditions& conditions)
      : plan_(plan),
        graph_(plan.graph),
        on_(conditions),
        at_(graph_.num_ranks()),
        ends_(graph_.num_edges()),
        task_end_(graph_.num_tasks()),
        fetched_(graph_.num_tasks()),
        channels_(graph_.num_ranks()) {}

  // Returns the step time; none if the programs do not end.
  std::optional<Duration> Run() {
    for (const RankId rank : graph_.rank_ids()) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const RankId rank = runnable_.back();
      runnable_.pop_back();
      RunRank(rank);
    }
    Duration finish{};
    for (const RankId rank : graph_.rank_ids()) {
      const Place& place = at_[rank];
      if (place.next < plan_.programs[rank].size()) return std::nullopt;
      finish = std::max({finish, place.now, place.copied});
    }
    return finish;
  }

 private:
  struct Place {
    size_t next = 0;
    Duration now{};
    Duration copied{};  // When the copy stream is free.
    EdgeId waits_for{};
    bool offered = false;  // Whether the send that it waits in is reached.
  };
  struct Channel {
    RankId to{};
    Duration free{};  // When its last transfer has left.
  };
  // The ends of a transfer that have been reached, and when; with both, when
  // the transfer has left.
  struct Ends {
    int reached = 0;
    Duration at{};
  };

  RankId FromRank(EdgeId e) const {
    return graph_.task(graph_.edge(e).from).rank;
  }
  RankId ToRank(EdgeId e) const { return graph_.task(graph_.edge(e).to).rank; }

  Channel& ChannelTo(RankId from, RankId to) {
    for (Channel& channel : channels_[from]) {
      if (channel.to == to) return channel;
    }
    channels_[from].push_back({to});
    return channels_[from].back();
  }

  // Marks one end as reached. With the second, the transfer begins.
  void Reach(EdgeId e, RankId here, Duration now) {
    Ends& ends = ends_[e];
    ends.at = std::max(ends.at, now);
    if (++ends.reached < 2) return;
    const RankId from = FromRank(e);
    const RankId to = ToRank(e);
    if (on_.channels) {
      Duration& free = ChannelTo(from, to).free;
      ends.at = std::max(ends.at, free);
      free = ends.at + graph_.edge(e).occupancy;
    }
    ends.at += graph_.edge(e).occupancy;
    const RankId other = here == from ? to : from;
    if (at_[other].waits_for == e) {
      at_[other].waits_for = EdgeId();
      runnable_.push_back(other);
    }
  }

  // Returns false if the rank waits for the transfer; else `now` becomes the
  // time at which it has left or, at the receiver, arrived.
  bool Await(EdgeId e, bool arrived, Place* place) const {
    if (ends_[e].reached < 2) {
      place->waits_for = e;
      return false;
    }
    const Dependency& d = graph_.edge(e);
    place->now = std::max(
        place->now, ends_[e].at + (arrived ? d.delay - d.occupancy : kZero));
    return true;
  }

  bool Offer(EdgeId e, RankId rank, Place* place) {
    if (!place->offered) Reach(e, rank, place->now);
    place->offered = on_.blocking_sends;
    if (place->offered && !Await(e, false, place)) return false;
    place->offered = false;
    return true;
  }

  void RunTask(TaskId t, RankId rank, Place* place) {
    Duration start = place->now;
    for (const EdgeId e : graph_.incoming(t)) {
      const Dependency& d = graph_.edge(e);
      if (graph_.task(d.from).rank == rank) {
        start =
            std::max({start, task_end_[d.from] + d.delay, fetched_[d.from]});
      }
    }
    place->now = start + graph_.task(t).duration;
    task_end_[t] = place->now;
  }

  Duration Copy(TaskId t, Bytes payload, Place* place) const {
    place->copied =
        std::max(place->now, place->copied) +
        (on_.slow_copies ? graph_.task(t).duration
                         : TransferTime(payload, on_.host_bandwidth));
    return place->copied;
  }

  void RunRank(RankId rank) {
    Place& place = at_[rank];
    const std::vector<Instruction>& program = plan_.programs[rank];
    for (; place.next < program.size(); ++place.next) {
      const bool goes_on = std::visit(
          Overloaded{
              [&](const Compute& i) {
                RunTask(i.task, rank, &place);
                return true;
              },
              [&](const Send& i) { return Offer(i.edge, rank, &place); },
              [&](const Recv& i) {
                Reach(i.edge, rank, place.now);
                return true;
              },
              [&](const WaitRecv& i) { return Await(i.edge, true, &place); },
              [&](const WaitSend& i) { return Await(i.edge, false, &place); },
              [](const Free&) { return true; },
              [&](const Offload& i) {
                Copy(i.task, i.payload, &place);
                return true;
              },
              [&](const Fetch& i) {
                fetched_[i.task] = Copy(i.task, i.payload, &place);
                return true;
              },
              [&](const ReduceGradients&) {
                place.now += graph_.rank(rank).epilogue;
                return true;
              },
              [](const OptimizerStep&) { return true; },
          },
          program[place.next]);
      if (!goes_on) return;
    }
  }

  const ExecutionPlan& plan_;
  const StageGraph& graph_;
  const Conditions on_;
  IdVector<RankId, Place> at_;
  IdVector<EdgeId, Ends> ends_;
  IdVector<TaskId, Duration> task_end_;
  IdVector<TaskId, Duration> fetched_;
  IdVector<RankId, std::vector<Channel>> channels_;  // Indexed by sender.
  std::vector<RankId> runnable_{};
};

bool HasCopies(const ExecutionPlan& plan) {
  for (const std::vector<Instruction>& program : plan.programs) {
    for (const Instruction& i : program) {
      if (std::holds_alternative<Offload>(i)) return true;
    }
  }
  return false;
}

// Returns the time for which all transfers keep links busy, one after another.
Duration AllTransfers(const StageGraph& graph) {
  Duration sum{};
  for (const Dependency& d : graph.edges()) {
    if (graph.task(d.from).rank != graph.task(d.to).rank) sum += d.occupancy;
  }
  return sum;
}

}  // namespace

absl::Status CheckPredictedTimes(const ExecutionPlan& plan) {
  const Duration predicted = plan.predicted_step_time;
  if (predicted < kZero || plan.lower_bound < kZero) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "plan: predicted_step_time_ns %d and lower_bound_ns %d must be >= 0",
        predicted.count(), plan.lower_bound.count()));
  }
  if (predicted == kZero) return absl::OkStatus();
  if (plan.lower_bound > predicted) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "plan: lower_bound_ns is %d, above predicted_step_time_ns, %d",
        plan.lower_bound.count(), predicted.count()));
  }
  const auto run = [&](const Conditions& conditions) {
    return TimedRun(plan, conditions).Run().value_or(kZero);
  };
  const SharedLinks& links = plan.links;
  const Duration usual = run({.blocking_sends = links.blocking_sends,
                              .host_bandwidth = links.host_bandwidth});
  if (predicted == usual) return absl::OkStatus();
  if (links != SharedLinks{} && links.sharing == LinkSharing::kPerPair &&
      links.host_link_of_rank.empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "plan: predicted_step_time_ns is %d; by the plan's own times and links "
        "its programs take %d",
        predicted.count(), usual.count()));
  }
  const bool copies = HasCopies(plan);
  if (!copies && predicted == run({.blocking_sends = true})) {
    return absl::OkStatus();
  }
  const Duration least = run({.channels = false});
  const Duration most =
      run({.channels = false, .blocking_sends = true, .slow_copies = true}) +
      AllTransfers(plan.graph);
  if (least <= predicted && predicted <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "plan: predicted_step_time_ns is %d; by the plan's own times its "
      "programs "
      "take %d%s",
      predicted.count(), usual.count(),
      absl::StrFormat(", between %d and %d on any network%s", least.count(),
                      most.count(), copies ? " and link to the host" : "")));
}

}  // namespace pipeloom
