// The pipeline of one replica in a step of an operation log, as a graph whose
// order can be searched.
#ifndef PIPELOOM_TRACE_OPLOG_LOGGED_PIPELINE_H_
#define PIPELOOM_TRACE_OPLOG_LOGGED_PIPELINE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "trace/oplog/op_replay.h"

namespace pipeloom::trace {

struct LoggedPipeline {
  StageGraph graph{};
  RankOrders order{};  // As it was carried out.
};

// Makes the graph of forwards and backwards with their logged times; a
// dependency between two stages takes the transfer's own time. There is no
// memory in a log, so no more microbatches should be in flight than were.
// InvalidArgument: a stage has not exactly one forward and one backward of each
// microbatch of the first stage.
absl::StatusOr<LoggedPipeline> PipelineOf(const OpReplay& replay,
                                          int32_t replica, int32_t stages);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_OPLOG_LOGGED_PIPELINE_H_
