// Reader of cost queries: JSON Lines, one operator per line, for `pipeloom
// cost`.
//
//   {"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16",
//    "pass": "weight_grad"}
//
// Fields are those of ir/profile/op_query.h, with "hidden" for width and
// "causal": true for mask. Defaults: dtype bf16, pass forward, mask causal,
// span node, two ranks for send_recv. Fields that the operator does not have
// are passed through.
#ifndef PIPELOOM_FORMATS_PROFILE_OP_QUERY_READER_H_
#define PIPELOOM_FORMATS_PROFILE_OP_QUERY_READER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/profile/op_query.h"

namespace pipeloom::formats {

// A query as parsed from a line.
struct ParsedQuery {
  OpQuery query{};
  std::string extra{};      // The first field that is not used, or empty.
  bool has_answer = false;  // It already has a "time_us" or a "source".
};

// Parses a line. InvalidArgument: `FILE:LINE: field "n" is -3; it must be in
// [1, ...]`.
absl::StatusOr<ParsedQuery> ParseOpQuery(absl::string_view line,
                                         absl::string_view file_name,
                                         int32_t line_number);

// Returns the line, without line end, with "time_us" and "source" at the end of
// its object, in place of those that it has already. REQUIRES: ParseOpQuery
// read the line.
std::string AnswerLine(absl::string_view line, const ParsedQuery& parsed,
                       absl::string_view time_us, absl::string_view source);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_OP_QUERY_READER_H_
