// Operation logs of trainings: what each worker of a job did in each step, one
// row an operation. A worker is one pipeline stage of one data-parallel
// replica.
//
// The table has the columns of the traces that ByteDance published with
// "Understanding Stragglers in Large Model Training Using What-if Analysis"
// (OSDI 2025, arXiv 2505.05713), as comma-separated values:
//
//   step, dp, stage   numbers of step, replica and pipeline stage
//   start_ms          from the beginning of the step
//   op                see OpKind
//   microbatch        of F and B; others are numbered in their order
//   duration_ms       including what a communication waits for others
#ifndef PIPELOOM_TRACE_OPLOG_OP_LOG_H_
#define PIPELOOM_TRACE_OPLOG_OP_LOG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"

namespace pipeloom::trace {

enum class OpKind {
  kForward,          // F
  kBackward,         // B
  kSendForward,      // FS, to the next stage.
  kReceiveForward,   // FR
  kSendBackward,     // BS, to the stage before.
  kReceiveBackward,  // BR
  kAllGather,        // AG, of parameters; among the replicas of a stage.
  kReduceScatter,    // RS, of gradients; among the replicas of a stage.
  kEmbedding,        // EM, of tied embeddings; first and last stage.
  kClip,             // CLIP, the gradients' norm; among all workers.
  kNorms,            // LN, of layer norms' gradients.
  kCollect,          // GC
  kOptimizer,        // OPT
};
inline constexpr int kOpKinds = 13;
// Returns the name in logs.
absl::string_view OpName(OpKind kind);
// Returns whether the operation is of one worker alone.
bool IsLocal(OpKind kind);

struct Operation {
  OpKind kind = OpKind::kForward;
  int32_t microbatch = -1;  // -1: none.
  Duration start{};         // From the beginning of the step.
  Duration duration{};
  Duration end() const { return start + duration; }
  bool operator==(const Operation&) const = default;
};

struct OpLogStep {
  int64_t number = 0;
  int32_t replicas = 0;
  int32_t stages = 0;
  // Indexed by replica * stages + stage; ordered by start.
  std::vector<std::vector<Operation>> workers{};

  // Returns the time from the beginning to the last end.
  Duration time() const;
};

struct OpLog {
  std::vector<OpLogStep> steps{};  // Ordered by number.
};

// Parses a log. InvalidArgument "FILE:LINE: ..." names the column and value, or
// the worker that is missing in a step; at most 100,000 workers. O(n log n) for
// n rows.
absl::StatusOr<OpLog> ParseOpLog(absl::string_view text,
                                 absl::string_view file_name);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_OPLOG_OP_LOG_H_
