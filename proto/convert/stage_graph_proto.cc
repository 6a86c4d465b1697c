#include "proto/convert/stage_graph_proto.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::convert {
namespace {

v1::TaskKind KindOf(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return v1::FORWARD;
    case Pass::kBackward:
      return v1::BACKWARD;
    case Pass::kWeightGrad:
      return v1::WEIGHT_GRAD;
  }
  return v1::TASK_KIND_UNSPECIFIED;
}

absl::StatusOr<Pass> PassOf(v1::TaskKind kind, int task) {
  switch (kind) {
    case v1::FORWARD:
      return Pass::kForward;
    case v1::BACKWARD:
      return Pass::kBackward;
    case v1::WEIGHT_GRAD:
      return Pass::kWeightGrad;
    default:
      return absl::InvalidArgumentError(absl::StrFormat(
          "graph.tasks[%d].kind is %d; it must be FORWARD, BACKWARD or "
          "WEIGHT_GRAD",
          task, static_cast<int>(kind)));
  }
}

}  // namespace

v1::RankSpec ToProto(const RankSpec& rank) {
  v1::RankSpec r;
  r.mutable_memory()->set_limit_bytes(rank.memory.limit.count());
  r.mutable_memory()->set_weights_bytes(rank.memory.weights.count());
  r.mutable_memory()->set_gradients_bytes(rank.memory.gradients.count());
  r.mutable_memory()->set_optimizer_bytes(rank.memory.optimizer.count());
  r.mutable_memory()->set_overhead_bytes(rank.memory.overhead.count());
  r.set_epilogue_ns(rank.epilogue.count());
  return r;
}

v1::Task ToProto(const Task& task) {
  v1::Task t;
  t.set_rank(task.rank.value());
  t.set_kind(KindOf(task.pass));
  t.set_module(task.module.value());
  t.set_stage(task.stage.value());
  t.set_microbatch(task.microbatch.value());
  t.set_sub_microbatch(task.sub_microbatch);
  t.set_duration_ns(task.duration.count());
  t.set_alloc_bytes(task.alloc.count());
  t.set_free_bytes(task.free.count());
  t.set_recomputes(task.recomputes);
  if (!task.overlaps.is_none()) t.set_overlaps(task.overlaps.value());
  return t;
}

v1::Dependency ToProto(const Dependency& edge) {
  v1::Dependency d;
  d.set_from(edge.from.value());
  d.set_to(edge.to.value());
  d.set_delay_ns(edge.delay.count());
  d.set_occupancy_ns(edge.occupancy.count());
  d.set_payload_bytes(edge.payload.count());
  d.set_rows(edge.rows);
  d.set_width(edge.width);
  return d;
}

v1::StageGraph ToProto(const StageGraph& graph) {
  v1::StageGraph proto;
  proto.set_name(graph.name());
  for (const RankSpec& rank : graph.ranks()) *proto.add_ranks() = ToProto(rank);
  for (const std::string& name : graph.module_names()) {
    proto.add_module_names(name);
  }
  for (const Task& task : graph.tasks()) *proto.add_tasks() = ToProto(task);
  for (const Dependency& edge : graph.edges()) {
    *proto.add_edges() = ToProto(edge);
  }
  return proto;
}

absl::StatusOr<StageGraph> FromProto(const v1::StageGraph& proto) {
  IdVector<RankId, RankSpec> ranks;
  ranks.reserve(proto.ranks_size());
  for (const v1::RankSpec& r : proto.ranks()) {
    RankSpec rank;
    rank.memory = {.limit = Bytes(r.memory().limit_bytes()),
                   .weights = Bytes(r.memory().weights_bytes()),
                   .gradients = Bytes(r.memory().gradients_bytes()),
                   .optimizer = Bytes(r.memory().optimizer_bytes()),
                   .overhead = Bytes(r.memory().overhead_bytes())};
    rank.epilogue = Nanoseconds(r.epilogue_ns());
    ranks.push_back(rank);
  }
  IdVector<TaskId, Task> tasks;
  tasks.reserve(proto.tasks_size());
  for (const v1::Task& t : proto.tasks()) {
    PIPELOOM_ASSIGN_OR_RETURN(const Pass pass, PassOf(t.kind(), tasks.size()));
    tasks.push_back(
        {.rank = RankId(t.rank()),
         .pass = pass,
         .module = ModuleId(t.module()),
         .stage = StageId(t.stage()),
         .microbatch = MicrobatchId(t.microbatch()),
         .sub_microbatch = t.sub_microbatch(),
         .duration = Nanoseconds(t.duration_ns()),
         .alloc = Bytes(t.alloc_bytes()),
         .free = Bytes(t.free_bytes()),
         .recomputes = t.recomputes(),
         .overlaps = t.has_overlaps() ? TaskId(t.overlaps()) : TaskId{}});
  }
  IdVector<EdgeId, Dependency> edges;
  edges.reserve(proto.edges_size());
  for (const v1::Dependency& d : proto.edges()) {
    edges.push_back({.from = TaskId(d.from()),
                     .to = TaskId(d.to()),
                     .delay = Nanoseconds(d.delay_ns()),
                     .occupancy = Nanoseconds(d.occupancy_ns()),
                     .payload = Bytes(d.payload_bytes()),
                     .rows = d.rows(),
                     .width = d.width()});
  }
  return StageGraph::Create(
      proto.name(), std::move(ranks),
      std::vector<std::string>(proto.module_names().begin(),
                               proto.module_names().end()),
      std::move(tasks), std::move(edges));
}

}  // namespace pipeloom::convert
