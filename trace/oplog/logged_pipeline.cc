#include "trace/oplog/logged_pipeline.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::trace {
namespace {

// Times of one replica; keys are stage and microbatch.
struct Times {
  std::map<std::pair<int32_t, int32_t>, Duration> forward{};
  std::map<std::pair<int32_t, int32_t>, Duration> backward{};
  std::map<std::pair<int32_t, int32_t>, Duration> forward_sent{};
  std::map<std::pair<int32_t, int32_t>, Duration> backward_sent{};
};

Duration Get(const std::map<std::pair<int32_t, int32_t>, Duration>& times,
             int32_t stage, int32_t number) {
  const auto found = times.find({stage, number});
  return found == times.end() ? kZero : found->second;
}

}  // namespace

absl::StatusOr<LoggedPipeline> PipelineOf(const OpReplay& replay,
                                          int32_t replica, int32_t stages) {
  Times times;
  IdVector<RankId, std::vector<std::pair<OpKind, int32_t>>> done(stages);
  // The place of a microbatch among the forwards and backwards of the first
  // stage, by which transfers are numbered.
  std::map<int32_t, int32_t> forward_number;
  std::map<int32_t, int32_t> backward_number;
  for (const OwnTime& o : replay.operations()) {
    if (o.replica != replica) continue;
    const std::pair at(o.stage, o.microbatch);
    bool is_new = true;
    switch (o.kind) {
      case OpKind::kForward:
        is_new = times.forward.emplace(at, o.time).second;
        if (o.stage == 0) {
          const auto number = static_cast<int32_t>(forward_number.size());
          forward_number.emplace(o.microbatch, number);
        }
        break;
      case OpKind::kBackward:
        is_new = times.backward.emplace(at, o.time).second;
        if (o.stage == 0) {
          const auto number = static_cast<int32_t>(backward_number.size());
          backward_number.emplace(o.microbatch, number);
        }
        break;
      case OpKind::kSendForward:
        times.forward_sent.emplace(at, o.time);
        continue;
      case OpKind::kSendBackward:
        times.backward_sent.emplace(at, o.time);
        continue;
      default:
        continue;
    }
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s of microbatch %d occurs twice on stage %d of replica %d; an "
          "order is searched for one forward and backward each",
          std::string(OpName(o.kind)), o.microbatch, o.stage, replica));
    }
    done[RankId(o.stage)].emplace_back(o.kind, o.microbatch);
  }
  const auto count = static_cast<int64_t>(forward_number.size());
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  std::map<std::pair<OpKind, std::pair<int32_t, int32_t>>, TaskId> ids;
  for (const OpKind kind : {OpKind::kForward, OpKind::kBackward}) {
    const bool forward = kind == OpKind::kForward;
    for (int32_t i = 0; i < stages; ++i) {
      const int32_t stage = forward ? i : stages - 1 - i;
      for (const auto& [microbatch, number] : forward_number) {
        const std::pair at(stage, microbatch);
        const auto& own = forward ? times.forward : times.backward;
        const auto time = own.find(at);
        if (time == own.end()) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "stage %d of replica %d has no %s of microbatch %d; every stage "
              "must have those of all %d microbatches",
              stage, replica, std::string(OpName(kind)), microbatch, count));
        }
        Task task;
        task.rank = RankId(stage);
        task.stage = StageId(stage);
        task.module = ModuleId(0);
        task.pass = forward ? Pass::kForward : Pass::kBackward;
        task.microbatch = MicrobatchId(number);
        task.duration = time->second;
        const TaskId id = tasks.push_back(task);
        ids[{kind, at}] = id;
        if (!forward) {
          edges.push_back({.from = ids.at({OpKind::kForward, at}), .to = id});
        }
        if (i == 0) continue;
        const int32_t before = forward ? stage - 1 : stage + 1;
        const auto b = backward_number.find(microbatch);
        const Duration delay =
            forward ? Get(times.forward_sent, before, number)
                    : Get(times.backward_sent, before,
                          b == backward_number.end() ? -1 : b->second);
        edges.push_back({.from = ids.at({kind, {before, microbatch}}),
                         .to = id,
                         .delay = delay});
      }
    }
  }
  if (tasks.size() != 2 * count * stages ||
      times.forward.size() != static_cast<size_t>(count * stages)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "replica %d: later stages have other microbatches than the first",
        replica));
  }
  LoggedPipeline pipeline;
  IdVector<RankId, RankSpec> ranks(stages);
  PIPELOOM_ASSIGN_OR_RETURN(
      pipeline.graph, StageGraph::Create(absl::StrFormat("replica %d", replica),
                                         std::move(ranks), {"pipeline"},
                                         std::move(tasks), std::move(edges)));
  pipeline.order.assign(stages, {});
  for (const RankId r : done.ids()) {
    for (const auto& [kind, microbatch] : done[r]) {
      pipeline.order[r].push_back(ids.at({kind, {r.value(), microbatch}}));
    }
  }
  return pipeline;
}

}  // namespace pipeloom::trace
