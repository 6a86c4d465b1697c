// Random pipeline problems for the schedule-search benchmark: a search tuned on
// a few shipped problems is judged on ones that nobody has seen.
#ifndef PIPELOOM_STUDIES_BENCH_RANDOM_PROBLEMS_H_
#define PIPELOOM_STUDIES_BENCH_RANDOM_PROBLEMS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/graph/problem_suite.h"

namespace pipeloom::studies {

// The set that a problem belongs to: constants are chosen on kTrain only.
enum class ProblemSet : uint8_t { kTrain, kTest };

// Returns problem `index` of a set; each depends on set and index alone. Up to
// 16 ranks and about 3,000 tasks; one to three modules of up to four looped or
// vee chunks a rank; forwards of 0.5 to 2 ms; fused or split backwards;
// microbatches that are equal, vary mildly or strongly, or have one of four to
// ten times the work; three of four with a memory limit, from one and a half
// microbatches a rank, which is always enough for some schedule, to one more
// than there are ranks; two of five with transfer times.
formats::SuiteProblem RandomProblem(ProblemSet set, int32_t index);

// Returns the first problems of sets, from text such as "train:50" or
// "test:200". InvalidArgument says what would be right.
absl::StatusOr<std::vector<formats::SuiteProblem>> RandomProblems(
    absl::string_view text);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_BENCH_RANDOM_PROBLEMS_H_
