#include "formats/profile/op_names.h"

#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace pipeloom::formats {
namespace {

template <typename Enum>
using Words = std::pair<absl::string_view, Enum>;

constexpr Words<OpType> kOps[] = {
    {"matmul", OpType::kGemm},
    {"grouped_matmul", OpType::kGroupedGemm},
    {"sdpa", OpType::kAttention},
    {"norm", OpType::kRmsNorm},
    {"rms_norm", OpType::kRmsNorm},
    {"layer_norm", OpType::kLayerNorm},
    {"residual_add", OpType::kAdd},
    {"activation", OpType::kSwiglu},
    {"silu", OpType::kSwiglu},
    {"adam", OpType::kOptimizer},
    {"adamw", OpType::kOptimizer},
    {"allreduce", OpType::kAllReduce},
    {"allgather", OpType::kAllGather},
    {"reducescatter", OpType::kReduceScatter},
    {"alltoall", OpType::kAllToAll},
    {"all2all", OpType::kAllToAll},
    {"sendrecv", OpType::kSendRecv},
    {"p2p", OpType::kSendRecv},
};
constexpr Words<QueryPass> kPasses[] = {
    {"fwd", QueryPass::kForward},
    {"bwd", QueryPass::kBackward},
    {"dgrad", QueryPass::kInputGrad},
    {"wgrad", QueryPass::kWeightGrad},
};
constexpr Words<QueryDtype> kDtypes[] = {
    {"bfloat16", QueryDtype::kBf16}, {"float16", QueryDtype::kFp16},
    {"half", QueryDtype::kFp16},     {"float8", QueryDtype::kFp8},
    {"fp8_e4m3", QueryDtype::kFp8},  {"e4m3", QueryDtype::kFp8},
    {"float32", QueryDtype::kFp32},  {"float", QueryDtype::kFp32},
};
constexpr Words<QueryMask> kMasks[] = {
    {"top_left", QueryMask::kCausal},    {"bottom_right", QueryMask::kCausal},
    {"true", QueryMask::kCausal},        {"1", QueryMask::kCausal},
    {"no_mask", QueryMask::kFull},       {"none", QueryMask::kFull},
    {"false", QueryMask::kFull},         {"0", QueryMask::kFull},
    {"bidirectional", QueryMask::kFull},
};
constexpr Words<QuerySpan> kSpans[] = {
    {"intra_node", QuerySpan::kNode},
    {"internode", QuerySpan::kInterNode},
    {"nodes", QuerySpan::kInterNode},
};

template <typename Enum, size_t N>
std::optional<Enum> Find(absl::string_view word, const Words<Enum> (&others)[N],
                         Enum last) {
  const std::string lower =
      absl::AsciiStrToLower(absl::StripAsciiWhitespace(word));
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (lower == Name(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  for (const auto& [other, value] : others) {
    if (lower == other) return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<OpType> OpTypeOf(absl::string_view word) {
  return Find(word, kOps, OpType::kSendRecv);
}
std::optional<QueryPass> PassOf(absl::string_view word) {
  return Find(word, kPasses, QueryPass::kBackward);
}
std::optional<QueryDtype> DtypeOf(absl::string_view word) {
  return Find(word, kDtypes, QueryDtype::kFp32);
}
std::optional<QueryMask> MaskOf(absl::string_view word) {
  return Find(word, kMasks, QueryMask::kFull);
}
std::optional<QuerySpan> SpanOf(absl::string_view word) {
  return Find(word, kSpans, QuerySpan::kInterNode);
}

std::string OpTypeWords() {
  std::string words;
  for (int i = 0; i < kNumOpTypes; ++i) {
    absl::StrAppend(&words, i == 0 ? "" : ", ", Name(static_cast<OpType>(i)));
  }
  return words;
}

}  // namespace pipeloom::formats
