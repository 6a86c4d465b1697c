#include "ir/profile/op_query.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace pipeloom {
namespace {

// A larger size is a mistake. Below it all products are exact enough as
// doubles.
constexpr int64_t kMaxOfAField = int64_t{1} << 50;

using Fields = std::vector<QueryField>;

const Fields& StreamingFields() {
  static const Fields* const fields =
      new Fields{{"tokens", &OpQuery::tokens}, {"width", &OpQuery::width}};
  return *fields;
}

const Fields& CollectiveFields() {
  static const Fields* const fields =
      new Fields{{"bytes", &OpQuery::bytes},
                 {"ranks", &OpQuery::ranks},
                 {"ranks_per_node", &OpQuery::ranks_per_node, false, 0}};
  return *fields;
}

absl::Status BadField(const OpQuery& query, absl::string_view field,
                      int64_t value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat("field \"", field, "\" of ",
                                                 Name(query.op), " is ", value,
                                                 "; it must be ", allowed));
}

bool HasPass(OpType op, QueryPass pass) {
  switch (op) {
    case OpType::kGemm:
    case OpType::kGroupedGemm:
      return pass != QueryPass::kBackward;
    case OpType::kAttention:
    case OpType::kMoe:
      return pass == QueryPass::kForward || pass == QueryPass::kBackward;
    default:
      break;
  }
  if (IsStreaming(op)) {
    return pass == QueryPass::kForward || pass == QueryPass::kBackward;
  }
  return pass == QueryPass::kForward;
}

// Returns how many tensors of tokens x width a streaming operator moves in a
// pass. Backward: the incoming gradient, what was kept, the outgoing gradient.
double StreamedElements(OpType op, QueryPass pass) {
  const bool forward = pass == QueryPass::kForward;
  switch (op) {
    case OpType::kAdd:
      return forward ? 3 : 1;  // Backward at most copies the gradient.
    case OpType::kRope:
      return 2;
    case OpType::kSwiglu:
      return forward ? 3 : 5;
    case OpType::kEmbedding:
      return forward ? 2 : 2;
    default:
      return forward ? 2 : 3;
  }
}

double AsDouble(int64_t value) { return static_cast<double>(value); }

double AttentionPairs(const OpQuery& q) {
  const double seq = AsDouble(q.seq);
  double pairs = q.mask == QueryMask::kCausal ? seq * seq / 2 : seq * seq;
  if (q.window > 0) pairs = std::min(pairs, seq * AsDouble(q.window));
  return pairs * AsDouble(q.batch);
}

}  // namespace

absl::string_view Name(OpType op) {
  static constexpr absl::string_view kNames[] = {
      "gemm",       "grouped_gemm",   "attention",
      "rmsnorm",    "layernorm",      "softmax",
      "add",        "rope",           "embedding",
      "gelu",       "swiglu",         "optimizer",
      "moe",        "small_layer",    "all_reduce",
      "all_gather", "reduce_scatter", "all_to_all",
      "send_recv"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kNumOpTypes);
  return kNames[static_cast<int>(op)];
}

absl::string_view Name(QueryPass pass) {
  switch (pass) {
    case QueryPass::kForward:
      return "forward";
    case QueryPass::kInputGrad:
      return "input_grad";
    case QueryPass::kWeightGrad:
      return "weight_grad";
    case QueryPass::kBackward:
      return "backward";
  }
  return "";
}

absl::string_view Name(QueryDtype dtype) {
  switch (dtype) {
    case QueryDtype::kBf16:
      return "bf16";
    case QueryDtype::kFp16:
      return "fp16";
    case QueryDtype::kFp8:
      return "fp8";
    case QueryDtype::kFp32:
      return "fp32";
  }
  return "";
}

absl::string_view Name(QueryMask mask) {
  return mask == QueryMask::kCausal ? "causal" : "full";
}

absl::string_view Name(QuerySpan span) {
  return span == QuerySpan::kNode ? "node" : "inter_node";
}

bool IsCollective(OpType op) { return op >= OpType::kAllReduce; }

bool IsStreaming(OpType op) {
  return op >= OpType::kRmsNorm && op <= OpType::kSwiglu;
}

double BytesPerElement(QueryDtype dtype) {
  switch (dtype) {
    case QueryDtype::kBf16:
    case QueryDtype::kFp16:
      return 2;
    case QueryDtype::kFp8:
      return 1;
    case QueryDtype::kFp32:
      return 4;
  }
  return 2;
}

const std::vector<QueryField>& FieldsOf(OpType op) {
  if (IsStreaming(op)) return StreamingFields();
  if (IsCollective(op)) return CollectiveFields();
  static const Fields* const gemm =
      new Fields{{"m", &OpQuery::m}, {"n", &OpQuery::n}, {"k", &OpQuery::k}};
  static const Fields* const grouped = new Fields{{"groups", &OpQuery::groups},
                                                  {"m", &OpQuery::m},
                                                  {"n", &OpQuery::n},
                                                  {"k", &OpQuery::k}};
  static const Fields* const attention =
      new Fields{{"batch", &OpQuery::batch, false},
                 {"seq", &OpQuery::seq},
                 {"heads", &OpQuery::heads},
                 {"kv_heads", &OpQuery::kv_heads, false, 0},
                 {"head_dim", &OpQuery::head_dim},
                 {"window", &OpQuery::window, false, 0}};
  static const Fields* const optimizer =
      new Fields{{"parameters", &OpQuery::parameters}};
  static const Fields* const moe = new Fields{{"tokens", &OpQuery::tokens},
                                              {"width", &OpQuery::width},
                                              {"ffn", &OpQuery::ffn},
                                              {"experts", &OpQuery::experts},
                                              {"top_k", &OpQuery::top_k}};
  static const Fields* const small_layer =
      new Fields{{"tokens", &OpQuery::tokens},
                 {"width", &OpQuery::width},
                 {"heads", &OpQuery::heads, false, 0},
                 {"ffn", &OpQuery::ffn, false, 0},
                 {"kernels", &OpQuery::kernels}};
  switch (op) {
    case OpType::kGroupedGemm:
      return *grouped;
    case OpType::kAttention:
      return *attention;
    case OpType::kOptimizer:
      return *optimizer;
    case OpType::kMoe:
      return *moe;
    case OpType::kSmallLayer:
      return *small_layer;
    default:
      return *gemm;
  }
}

std::string ToString(const OpQuery& query) {
  std::string text(Name(query.op));
  for (const QueryField& field : FieldsOf(query.op)) {
    const int64_t value = query.*field.value;
    if (!field.required && value == 0) continue;
    absl::StrAppend(&text, " ", field.name, "=", value);
  }
  if (IsCollective(query.op)) {
    return absl::StrCat(text, " ", Name(query.span));
  }
  if (query.op == OpType::kAttention) {
    absl::StrAppend(&text, " ", Name(query.mask));
  }
  return absl::StrCat(text, " ", Name(query.pass), " ", Name(query.dtype));
}

double FlopsOf(const OpQuery& q) {
  switch (q.op) {
    case OpType::kGemm:
      return 2 * AsDouble(q.m) * AsDouble(q.n) * AsDouble(q.k);
    case OpType::kGroupedGemm:
      return 2 * AsDouble(q.groups) * AsDouble(q.m) * AsDouble(q.n) *
             AsDouble(q.k);
    case OpType::kAttention: {
      const double forward =
          4 * AttentionPairs(q) * AsDouble(q.heads) * AsDouble(q.head_dim);
      return q.pass == QueryPass::kForward ? forward : 2.5 * forward;
    }
    case OpType::kMoe: {
      // Gated experts: three products per visit.
      const double forward = 6 * AsDouble(q.tokens) * AsDouble(q.top_k) *
                             AsDouble(q.width) * AsDouble(q.ffn);
      return q.pass == QueryPass::kForward ? forward : 2 * forward;
    }
    default:
      return 0;
  }
}

double MemoryBytesOf(const OpQuery& q) {
  const double element = BytesPerElement(q.dtype);
  switch (q.op) {
    case OpType::kGemm:
    case OpType::kGroupedGemm: {
      const double m = AsDouble(q.m);
      const double n = AsDouble(q.n);
      const double k = AsDouble(q.k);
      const double groups = q.op == OpType::kGemm ? 1 : AsDouble(q.groups);
      return groups * element * (m * k + k * n + m * n);
    }
    case OpType::kAttention: {
      const double kv = AsDouble(q.kv_heads > 0 ? q.kv_heads : q.heads);
      const double once = AsDouble(q.batch) * AsDouble(q.seq) *
                          AsDouble(q.head_dim) *
                          (2 * AsDouble(q.heads) + 2 * kv) * element;
      return q.pass == QueryPass::kForward ? once : 2 * once;
    }
    case OpType::kOptimizer:
      // Adam in fp32: weight, gradient and two moments read, three written.
      return 28 * AsDouble(q.parameters);
    case OpType::kMoe: {
      const double visited =
          std::min(AsDouble(q.experts), AsDouble(q.tokens) * AsDouble(q.top_k));
      return element * (3 * visited * AsDouble(q.width) * AsDouble(q.ffn) +
                        2 * AsDouble(q.tokens) * AsDouble(q.width));
    }
    case OpType::kSmallLayer:
      return element * AsDouble(q.tokens) * AsDouble(q.width);
    default:
      break;
  }
  if (IsStreaming(q.op)) {
    return element * AsDouble(q.tokens) * AsDouble(q.width) *
           StreamedElements(q.op, q.pass);
  }
  return 0;
}

absl::Status ValidateOpQuery(const OpQuery& q) {
  for (const QueryField& field : FieldsOf(q.op)) {
    const int64_t value = q.*field.value;
    if (value < field.least || value > kMaxOfAField) {
      return BadField(
          q, field.name, value,
          absl::StrCat("in [", field.least, ", ", kMaxOfAField, "]"));
    }
  }
  if (!HasPass(q.op, q.pass)) {
    const bool gemm = q.op == OpType::kGemm || q.op == OpType::kGroupedGemm;
    const bool one = HasPass(q.op, QueryPass::kBackward) == false && !gemm;
    return absl::InvalidArgumentError(
        absl::StrCat("field \"pass\" of ", Name(q.op), " is \"", Name(q.pass),
                     "\"; it must be ",
                     gemm ? "forward, input_grad or weight_grad"
                          : (one ? "forward" : "forward or backward")));
  }
  if (q.op == OpType::kAttention && q.kv_heads > 0 &&
      q.heads % q.kv_heads != 0) {
    return BadField(q, "kv_heads", q.kv_heads,
                    absl::StrCat("a divisor of heads, ", q.heads));
  }
  if (q.op == OpType::kMoe && q.top_k > q.experts) {
    return BadField(q, "top_k", q.top_k,
                    absl::StrCat("at most experts, ", q.experts));
  }
  if (IsCollective(q.op) && q.ranks_per_node > q.ranks) {
    return BadField(q, "ranks_per_node", q.ranks_per_node,
                    absl::StrCat("at most ranks, ", q.ranks));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
