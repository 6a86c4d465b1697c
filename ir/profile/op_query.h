// One operator at one size: the question of `pipeloom cost` and the subject of
// a measurement. A plain union of the fields of all operators; `op` says which
// ones count:
//
//   gemm            m n k (tokens, outputs, inputs of the forward product)
//   grouped_gemm    groups of m n k each
//   attention       batch seq heads kv_heads head_dim, mask, window; readers
//                   set kv_heads to heads if it is not given
//   rmsnorm, layernorm, softmax, add, rope, embedding, gelu, swiglu
//                   tokens width (of the result)
//   optimizer       parameters
//   moe             tokens width ffn experts top_k
//   small_layer     tokens width heads ffn kernels: launch-bound layers
//   all_reduce ... send_recv
//                   bytes (of the full buffer) ranks span ranks_per_node
#ifndef PIPELOOM_IR_PROFILE_OP_QUERY_H_
#define PIPELOOM_IR_PROFILE_OP_QUERY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pipeloom {

// The operators that can be measured and priced.
enum class OpType {
  kGemm,
  kGroupedGemm,
  kAttention,
  kRmsNorm,
  kLayerNorm,
  kSoftmax,
  kAdd,
  kRope,
  kEmbedding,
  kGelu,
  kSwiglu,
  kOptimizer,
  kMoe,
  kSmallLayer,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSendRecv,
};
inline constexpr int kNumOpTypes = 19;

enum class QueryPass { kForward, kInputGrad, kWeightGrad, kBackward };
enum class QueryDtype { kBf16, kFp16, kFp8, kFp32 };
enum class QueryMask { kCausal, kFull };
enum class QuerySpan { kNode, kInterNode };

// One operator at one size.
struct OpQuery {
  OpType op = OpType::kGemm;
  QueryPass pass = QueryPass::kForward;
  QueryDtype dtype = QueryDtype::kBf16;
  QueryMask mask = QueryMask::kCausal;
  QuerySpan span = QuerySpan::kNode;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t groups = 1;
  int64_t batch = 1;
  int64_t seq = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // Tokens that each token sees; 0: all.
  int64_t tokens = 0;
  int64_t width = 0;
  int64_t ffn = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t parameters = 0;
  int64_t kernels = 0;
  int64_t bytes = 0;
  int64_t ranks = 0;
  int64_t ranks_per_node = 0;  // 0: not known.
  bool operator==(const OpQuery&) const = default;
};

// Return the names used in files, such as "all_gather".
absl::string_view Name(OpType op);
absl::string_view Name(QueryPass pass);
absl::string_view Name(QueryDtype dtype);
absl::string_view Name(QueryMask mask);
absl::string_view Name(QuerySpan span);

bool IsCollective(OpType op);  // Includes send_recv.
// Returns whether memory bounds the operator: norms, activations, add, rope,
// softmax, embedding.
bool IsStreaming(OpType op);
// Returns the bytes of an element.
double BytesPerElement(QueryDtype dtype);

// A field that `op` uses: its name in files and its lowest value.
struct QueryField {
  absl::string_view name{};
  int64_t OpQuery::*value = nullptr;
  bool required = true;
  int64_t least = 1;
};
// Returns the fields of an operator, in the order of files.
const std::vector<QueryField>& FieldsOf(OpType op);

// Describes the query for messages: "gemm m=1024 n=4096 k=4096 forward bf16".
std::string ToString(const OpQuery& query);

// Returns the floating-point operations as rooflines count them: a causal mask
// halves them, the backward of attention has 2.5 times those of the forward; 0
// for streaming operators and collectives.
double FlopsOf(const OpQuery& query);
// Returns the bytes that must pass through the device's memory at least once; 0
// for collectives.
double MemoryBytesOf(const OpQuery& query);

// Checks the query: sizes in range, heads divisible by kv_heads, a pass that
// the operator has. Returns InvalidArgument that names the field.
absl::Status ValidateOpQuery(const OpQuery& query);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PROFILE_OP_QUERY_H_
