// Reader of the schedule-search benchmark suite (docs/bench.md): a list of
// problems, each a uniform or multimodal pipeline given by a few numbers, a
// TaskGraph file, or a step of a job.
//
//   {"source": "...", "problems": [
//     {"name": "vee-8x24", "family": "uniform", "best_known_us": 98250,
//      "pipeline": {"ranks": 8, "microbatches": 24, "split_backward": true,
//        "memory_limit_bytes": 16000, "delay_us": 0, "modules": [
//          {"name": "model", "chunks": 2, "map": "vee", "forward_us": 500,
//           "backward_us": 500, "weight_grad_us": 500,
//           "activation_bytes": 1000, "scale": [1, 1.5]}]}},
//     {"name": "two models", "pipeline": {"ranks": 8, "microbatches": 32,
//       "modules": [{"name": "actor", "forward_us": 5000, "backward_us":
//       10000},
//         {"name": "critic", "microbatches": 16, "first_rank": 4, "ranks": 4,
//          "reverse": true, "forward_us": 4000, "backward_us": 8000}]}},
//     {"name": "mine", "graph": "mine.json"},
//     {"name": "vlm", "job": "dip-vlm-s", "batch": "image_text", "steps": 2}]}
#ifndef PIPELOOM_FORMATS_GRAPH_PROBLEM_SUITE_H_
#define PIPELOOM_FORMATS_GRAPH_PROBLEM_SUITE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::formats {

// A module of a pipeline problem: `chunks` times as many equal stages as ranks,
// one after another. Chunk c of a looped module goes from rank 0 to the last;
// of a vee one, odd chunks go back. Times and bytes are those of one stage and
// microbatch.
struct PipelineModule {
  std::string name{};
  int32_t chunks = 1;
  bool vee = false;
  Duration forward{};
  Duration backward{};  // The input gradient.
  Duration weight_grad{};
  Bytes activation{};  // From the forward to the end of the last pass.
  // Factors on the times of microbatches, used cyclically. Empty: 1.
  std::vector<double> scale{};
  // If not 0, this module is a separate pipeline with this many microbatches:
  // for example a second model that is trained at the same time.
  int32_t microbatches = 0;
  int32_t first_rank = 0;
  int32_t ranks = 0;     // How many from `first_rank` on; 0: all of them.
  bool reverse = false;  // From its last rank to its first.
};

// A pipeline in which every microbatch goes through all stages of all modules
// without microbatches of their own, and back.
struct PipelineProblem {
  int32_t ranks = 1;
  int32_t microbatches = 1;
  // Whether W is a separate task; else B and W are one task.
  bool split_backward = false;
  Bytes memory_limit{};  // Per rank; 0: none.
  Duration delay{};      // Between stages on different ranks.
  std::vector<PipelineModule> modules{};
};
// Makes the graph of a problem. InvalidArgument: more than 2^60 ns or bytes in
// all.
absl::StatusOr<StageGraph> MakePipelineGraph(const std::string& name,
                                             const PipelineProblem& problem);

// Steps of a job.
struct JobProblem {
  std::string job{};
  std::string batch{};
  int32_t steps = 1;
};

// A problem of a suite. Exactly one of pipeline, graph_file and job is set.
struct SuiteProblem {
  std::string name{};
  std::string family{};
  std::optional<PipelineProblem> pipeline{};
  std::string graph_file{};
  std::optional<JobProblem> job{};
  Duration most_budget{};  // Longer searches are not tried; 0: no limit.
  Duration best_known{};   // 0: none known.
  // The best schedule of public code at no more memory, and the name of that
  // code.
  Duration peer{};
  std::string peer_name{};
};

// All problems of a suite.
struct ProblemSuite {
  std::string source{};  // Where the figures come from.
  std::vector<SuiteProblem> problems{};
};

// Parses a suite. InvalidArgument names file, line, field and what would be
// right.
absl::StatusOr<ProblemSuite> ParseProblemSuite(absl::string_view text,
                                               const std::string& file_name);

// Parses an answer to a TaskGraph (docs/plan_format.md): the tasks of each rank
// in order, by the ids of its file.
absl::StatusOr<std::vector<std::vector<int64_t>>> ParseAnswerOrders(
    absl::string_view text, const std::string& file_name);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_GRAPH_PROBLEM_SUITE_H_
