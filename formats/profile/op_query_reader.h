// Cost queries: JSON Lines, one operator a line, for `pipeloom cost`.
//
//   {"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16",
//    "pass": "weight_grad"}
//
// Fields are those of ir/profile/op_query.h, with "hidden" for width and
// "causal": true for mask. dtype is bf16, pass forward, mask causal, span node
// and send_recv of two ranks unless they are there. Fields that the operator
// does not have are passed through.
#ifndef PIPELOOM_FORMATS_PROFILE_OP_QUERY_READER_H_
#define PIPELOOM_FORMATS_PROFILE_OP_QUERY_READER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/profile/op_query.h"

namespace pipeloom::formats {

struct ParsedQuery {
  OpQuery query{};
  std::string extra{};      // The first field that is not used, or empty.
  bool has_answer = false;  // It has a "time_us" or a "source" already.
};

// InvalidArgument: `FILE:LINE: field "n" is -3; it must be in [1, ...]`.
absl::StatusOr<ParsedQuery> ParseOpQuery(absl::string_view line,
                                         absl::string_view file_name,
                                         int32_t line_number);

// The line again, without line end, with "time_us" and "source" at the end of
// its object; those that it has already are replaced. REQUIRES: ParseOpQuery
// read the line.
std::string AnswerLine(absl::string_view line, const ParsedQuery& parsed,
                       absl::string_view time_us, absl::string_view source);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_OP_QUERY_READER_H_
