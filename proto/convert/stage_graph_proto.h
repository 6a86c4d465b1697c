// Conversion of StageGraph to and from pipeloom.v1.StageGraph, exact to the
// nanosecond.
#ifndef PIPELOOM_PROTO_CONVERT_STAGE_GRAPH_PROTO_H_
#define PIPELOOM_PROTO_CONVERT_STAGE_GRAPH_PROTO_H_

#include "absl/status/statusor.h"
#include "ir/plan/stage_graph.h"
#include "pipeloom/v1/plan.pb.h"

namespace pipeloom::convert {

// Convert values to messages.
v1::StageGraph ToProto(const StageGraph& graph);
v1::RankSpec ToProto(const RankSpec& rank);
v1::Task ToProto(const Task& task);
v1::Dependency ToProto(const Dependency& edge);

// Converts a message. InvalidArgument names the field and value: an unknown
// kind, or what StageGraph::Create refuses.
absl::StatusOr<StageGraph> FromProto(const v1::StageGraph& proto);

}  // namespace pipeloom::convert

#endif  // PIPELOOM_PROTO_CONVERT_STAGE_GRAPH_PROTO_H_
