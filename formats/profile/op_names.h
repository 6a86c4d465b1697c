// Words of files for the fields of an OpQuery: our own names
// (ir/profile/op_query.h) and those of public data sets ("alltoall",
// "bfloat16", "dgrad"). Case does not matter. Unknown words give nullopt.
#ifndef PIPELOOM_FORMATS_PROFILE_OP_NAMES_H_
#define PIPELOOM_FORMATS_PROFILE_OP_NAMES_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "ir/profile/op_query.h"

namespace pipeloom::formats {

// Return the meaning of a word; nullopt for an unknown one.
std::optional<OpType> OpTypeOf(absl::string_view word);
std::optional<QueryPass> PassOf(absl::string_view word);
std::optional<QueryDtype> DtypeOf(absl::string_view word);
std::optional<QueryMask> MaskOf(absl::string_view word);
std::optional<QuerySpan> SpanOf(absl::string_view word);

// Returns our own names, separated by commas, for errors.
std::string OpTypeWords();
inline constexpr absl::string_view kPassWords =
    "forward, backward, input_grad, weight_grad";
inline constexpr absl::string_view kDtypeWords = "bf16, fp16, fp8, fp32";
inline constexpr absl::string_view kMaskWords = "causal, full";
inline constexpr absl::string_view kSpanWords = "node, inter_node";

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_OP_NAMES_H_
