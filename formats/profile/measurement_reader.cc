#include "formats/profile/measurement_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "formats/profile/op_names.h"
#include "formats/text/csv_reader.h"
#include "formats/text/json_reader.h"

namespace pipeloom::formats {
namespace {

constexpr double kMaxUs = 864e9;

// A column that holds times.
struct TimeColumn {
  absl::string_view name{};
  double to_us = 1;
  std::optional<QueryPass> pass{};  // Pass of all its times.
};
constexpr TimeColumn kTimeColumns[] = {
    {"time_us", 1, {}},
    {"us", 1, {}},
    {"latency_us", 1, {}},
    {"time_ms", 1e3, {}},
    {"median_ms", 1e3, {}},
    {"time_ns", 1e-3, {}},
    {"oop_ns", 1e-3, {}},
    {"fwd_us", 1, QueryPass::kForward},
    {"fwd_time_ms", 1e3, QueryPass::kForward},
    {"bwd_us", 1, QueryPass::kBackward},
    {"bwd_time_ms", 1e3, QueryPass::kBackward},
};

// Alternative names of the columns of OpQuery's fields.
struct OtherNames {
  absl::string_view name{};
  std::array<absl::string_view, 4> others{};
};
constexpr OtherNames kOtherNames[] = {
    {"batch", {"batch_size", "b", "", ""}},
    {"seq", {"seqlen", "q_seqlen", "sequence_length", ""}},
    {"heads", {"num_q_heads", "num_heads", "", ""}},
    {"kv_heads", {"num_kv_heads", "", "", ""}},
    {"head_dim", {"head_dim_qk", "qk_dim", "", ""}},
    {"window", {"sliding_window_size", "", "", ""}},
    {"width", {"hidden", "hidden_size", "", ""}},
    {"tokens", {"num_tokens", "", "", ""}},
    {"ffn", {"inter", "", "", ""}},
    {"top_k", {"topk", "", "", ""}},
    {"groups", {"num_groups", "", "", ""}},
    {"bytes", {"size", "", "", ""}},
    {"ranks", {"num_gpus", "num_workers", "", ""}},
    {"ranks_per_node", {"devices_per_node", "", "", ""}},
};

// Returns the words of a file's name, in lower case: "nccl_h100_sxm.csv" has
// four.
std::vector<std::string> WordsOf(absl::string_view file_name) {
  const size_t slash = file_name.rfind('/');
  if (slash != absl::string_view::npos) file_name.remove_prefix(slash + 1);
  const std::string lower = absl::AsciiStrToLower(file_name);
  return absl::StrSplit(lower, absl::ByAnyChar("_-. "), absl::SkipEmpty());
}

constexpr absl::string_view kGpus[] = {
    "a100", "a800", "h100", "h200", "h800", "h20",   "b200",  "b300",
    "l40s", "l40",  "l4",   "a40",  "v100", "gb200", "gb300", "mi300x"};

// Hints of the file's name, used if no column gives the value.
struct NameHints {
  std::optional<OpType> op{};
  std::optional<QueryDtype> dtype{};
  std::optional<QueryMask> mask{};
  std::string device{};
};

NameHints HintsOf(absl::string_view file_name) {
  NameHints hints;
  const std::vector<std::string> words = WordsOf(file_name);
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!hints.dtype.has_value()) hints.dtype = DtypeOf(word);
    if (word == "causal") hints.mask = QueryMask::kCausal;
    if (word == "encoder") hints.mask = QueryMask::kFull;
    if (!hints.op.has_value()) hints.op = OpTypeOf(word);
    if (!hints.op.has_value() && i + 1 < words.size()) {
      hints.op = OpTypeOf(absl::StrCat(word, "_", words[i + 1]));
    }
    if (hints.device.empty() && std::find(std::begin(kGpus), std::end(kGpus),
                                          word) != std::end(kGpus)) {
      hints.device = word;
      if (i + 1 < words.size() &&
          (words[i + 1] == "sxm" || words[i + 1] == "pcie")) {
        absl::StrAppend(&hints.device, "-", words[i + 1]);
      }
    }
  }
  return hints;
}

class Reader {
 public:
  Reader(const CsvTable& table, const std::string& file)
      : table_(table), file_(file), hints_(HintsOf(file)) {}

  absl::Status Read(MeasurementFile* out) {
    PIPELOOM_RETURN_IF_ERROR(FindColumns());
    if (!hints_.device.empty()) out->devices.push_back({hints_.device, 0});
    for (const CsvRow& row : table_.rows) {
      PIPELOOM_RETURN_IF_ERROR(ReadRow(row, out));
    }
    if (left_out_ > 0) {
      out->warnings.push_back(absl::StrCat(file_, ": ", left_out_,
                                           " times left out; the first: line ",
                                           first_left_out_, ", ", why_));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status FindColumns() {
    op_ = table_.Column({"op", "operator"});
    norm_ = table_.Column({"norm_type"});
    dtype_ = table_.Column({"dtype", "data_type"});
    pass_ = table_.Column({"pass", "stage"});
    layout_ = table_.Column({"layout"});
    mask_ = table_.Column({"mask", "attn_mask", "causal", "is_causal"});
    span_ = table_.Column({"span"});
    device_ = table_.Column({"device", "gpu", "gpu_name"});
    success_ = table_.Column({"success"});
    deterministic_ = table_.Column({"deterministic_bwd"});
    tp_ = table_.Column({"tp"});
    ep_ = table_.Column({"ep"});
    distribution_ = table_.Column({"distribution"});
    kv_length_ = table_.Column({"kv_seqlen"});
    if (kv_length_ >= 0) length_ = table_.Column({"q_seqlen", "seq"});
    value_dim_ = table_.Column({"head_dim_vo", "v_dim"});
    if (value_dim_ >= 0) key_dim_ = table_.Column({"head_dim_qk", "qk_dim"});
    PIPELOOM_RETURN_IF_ERROR(CheckBackend());
    if (op_ < 0) PIPELOOM_RETURN_IF_ERROR(GuessOp());
    for (const TimeColumn& column : kTimeColumns) {
      const int index = table_.Column({column.name});
      if (index < 0) continue;
      // "us" and "oop_ns" in addition to "time_us" would count one time twice.
      const bool again = std::any_of(
          times_.begin(), times_.end(),
          [&](const auto& other) { return other.second->pass == column.pass; });
      if (!again) times_.push_back({index, &column});
    }
    if (times_.empty()) {
      return ErrorAt(file_, 1,
                     "no column holds times; there must be time_us (or us, "
                     "time_ms, or fwd_us and bwd_us)");
    }
    return absl::OkStatus();
  }

  // Checks that there is one backend: times of several implementations are not
  // times of one device.
  absl::Status CheckBackend() {
    const int backend = table_.Column({"backend"});
    if (backend < 0) return absl::OkStatus();
    for (const CsvRow& row : table_.rows) {
      const auto i = static_cast<size_t>(backend);
      if (row.cells[i] == table_.rows[0].cells[i]) continue;
      return ErrorAt(file_, row.line,
                     absl::StrCat("column \"backend\" is \"", row.cells[i],
                                  "\" here and \"", table_.rows[0].cells[i],
                                  "\" before; keep one of them"));
    }
    return absl::OkStatus();
  }

  absl::Status GuessOp() {
    const auto has = [&](std::initializer_list<absl::string_view> names) {
      return table_.Column(names) >= 0;
    };
    if (has({"m"}) && has({"n"}) && has({"k"})) {
      guessed_op_ =
          has({"groups", "num_groups"}) ? OpType::kGroupedGemm : OpType::kGemm;
    } else if (has({"seq", "q_seqlen"}) && has({"heads", "num_q_heads"}) &&
               has({"head_dim", "head_dim_qk", "qk_dim"})) {
      guessed_op_ = OpType::kAttention;
    } else if (norm_ >= 0) {
      guessed_op_ = OpType::kRmsNorm;
    } else if (has({"topk", "top_k"}) && has({"experts"})) {
      guessed_op_ = OpType::kMoe;
    } else if (has({"bytes", "size"}) &&
               has({"ranks", "num_gpus", "num_workers"}) &&
               hints_.op.has_value()) {
      guessed_op_ = *hints_.op;
    } else {
      return ErrorAt(
          file_, 1,
          "the columns tell no operator; there must be a column op, or m, n "
          "and k, or seq, heads and head_dim, or bytes and num_gpus in a file "
          "named after its collective");
    }
    return absl::OkStatus();
  }

  absl::string_view Cell(const CsvRow& row, int column) const {
    if (column < 0) return "";
    return row.cells[static_cast<size_t>(column)];
  }

  absl::Status Refuse(const CsvRow& row, int column,
                      absl::string_view allowed) const {
    return ErrorAt(
        file_, row.line,
        absl::StrCat("column \"", table_.columns[static_cast<size_t>(column)],
                     "\" is \"", absl::CHexEscape(Cell(row, column)),
                     "\"; it must be ", allowed));
  }

  template <typename Enum>
  absl::Status Word(const CsvRow& row, int column,
                    std::optional<Enum> (*parse)(absl::string_view),
                    absl::string_view words, Enum* out) const {
    if (Cell(row, column).empty()) return absl::OkStatus();
    const std::optional<Enum> value = parse(Cell(row, column));
    if (!value.has_value()) {
      return Refuse(row, column, absl::StrCat("one of ", words));
    }
    *out = *value;
    return absl::OkStatus();
  }

  void LeaveOut(const CsvRow& row, absl::string_view why) {
    if (left_out_++ > 0) return;
    first_left_out_ = row.line;
    why_ = std::string(why);
  }

  static bool IsWhole(absl::string_view parts) {
    return parts.empty() || parts == "1";
  }
  static bool IsBalanced(absl::string_view distribution) {
    return distribution.empty() || distribution == "balanced" ||
           distribution == "uniform";
  }

  absl::Status ReadRow(const CsvRow& row, MeasurementFile* out) {
    if (const absl::string_view device = Cell(row, device_); !device.empty()) {
      const bool known = std::any_of(
          out->devices.begin(), out->devices.end(),
          [&](const DeviceMention& d) { return d.device == device; });
      if (!known) out->devices.push_back({std::string(device), row.line});
    }
    if (absl::EqualsIgnoreCase(Cell(row, success_), "false")) {
      LeaveOut(row, "it says that it failed");
      return absl::OkStatus();
    }
    if (Cell(row, kv_length_) != Cell(row, length_) ||
        Cell(row, value_dim_) != Cell(row, key_dim_)) {
      LeaveOut(row, "its queries, keys and values differ in size");
      return absl::OkStatus();
    }
    if (!IsWhole(Cell(row, tp_)) || !IsWhole(Cell(row, ep_)) ||
        !IsBalanced(Cell(row, distribution_))) {
      LeaveOut(row, "a share of an operator, or experts of unequal load");
      return absl::OkStatus();
    }
    OpQuery query;
    PIPELOOM_RETURN_IF_ERROR(ReadQuery(row, &query));
    for (const auto& [index, column] : times_) {
      const absl::string_view cell = Cell(row, index);
      if (cell.empty()) {
        LeaveOut(row, absl::StrCat("no ", column->name));
        continue;
      }
      OpMeasurement point{query, 0, row.line};
      if (column->pass.has_value()) point.query.pass = *column->pass;
      if (point.query.pass == QueryPass::kBackward &&
          absl::EqualsIgnoreCase(Cell(row, deterministic_), "true")) {
        LeaveOut(row, "deterministic backward, which is slower");
        continue;
      }
      double value = 0;
      if (!absl::SimpleAtod(cell, &value) ||
          !(value > 0 && value * column->to_us <= kMaxUs)) {
        return Refuse(row, index, "a time above 0 and of at most 10 days");
      }
      point.time_us = value * column->to_us;
      const absl::Status valid = ValidateOpQuery(point.query);
      if (!valid.ok()) return ErrorAt(file_, row.line, valid.message());
      out->points.push_back(point);
    }
    return absl::OkStatus();
  }

  absl::Status ReadQuery(const CsvRow& row, OpQuery* query) {
    query->op = guessed_op_;
    query->dtype = hints_.dtype.value_or(QueryDtype::kBf16);
    PIPELOOM_RETURN_IF_ERROR(
        Word(row, op_, OpTypeOf, OpTypeWords(), &query->op));
    PIPELOOM_RETURN_IF_ERROR(
        Word(row, norm_, OpTypeOf, "rms_norm, layer_norm", &query->op));
    if (op_ >= 0 && Cell(row, op_).empty()) {
      return Refuse(row, op_, absl::StrCat("one of ", OpTypeWords()));
    }
    if (!IsCollective(query->op)) {  // Its bytes suffice.
      PIPELOOM_RETURN_IF_ERROR(
          Word(row, dtype_, DtypeOf, kDtypeWords, &query->dtype));
    }
    PIPELOOM_RETURN_IF_ERROR(
        Word(row, pass_, PassOf, kPassWords, &query->pass));
    PIPELOOM_RETURN_IF_ERROR(
        Word(row, span_, SpanOf, kSpanWords, &query->span));
    if (query->op == OpType::kAttention) {
      if (mask_ < 0 && !hints_.mask.has_value()) {
        return ErrorAt(file_, row.line,
                       "nothing tells the mask; there must be a column mask "
                       "(causal or full)");
      }
      query->mask = hints_.mask.value_or(QueryMask::kCausal);
      PIPELOOM_RETURN_IF_ERROR(
          Word(row, mask_, MaskOf, kMaskWords, &query->mask));
    }
    for (const QueryField& field : FieldsOf(query->op)) {
      PIPELOOM_RETURN_IF_ERROR(ReadField(row, field, query));
    }
    return Convert(row, query);
  }

  int FieldColumn(absl::string_view name) const {
    int column = table_.Column({name});
    for (const OtherNames& names : kOtherNames) {
      if (column >= 0 || names.name != name) continue;
      for (const absl::string_view other : names.others) {
        if (column < 0 && !other.empty()) column = table_.Column({other});
      }
    }
    return column;
  }

  absl::Status ReadField(const CsvRow& row, const QueryField& field,
                         OpQuery* query) const {
    int column = FieldColumn(field.name);
    if (norm_ >= 0 && field.name == "tokens") column = table_.Column({"n"});
    if (norm_ >= 0 && field.name == "width") column = table_.Column({"c"});
    const absl::string_view cell = Cell(row, column);
    if (cell.empty()) {
      if (!field.required) return absl::OkStatus();
      if (query->op == OpType::kSendRecv && field.name == "ranks") {
        query->ranks = 2;
        return absl::OkStatus();
      }
      return ErrorAt(file_, row.line,
                     absl::StrCat(Name(query->op), " needs a column \"",
                                  field.name, "\""));
    }
    int64_t value = 0;
    double number = 0;
    if (absl::SimpleAtoi(cell, &value)) {
      query->*field.value = value;
      return absl::OkStatus();
    }
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (!absl::SimpleAtod(cell, &number) || number != std::floor(number) ||
        std::abs(number) > kExact) {
      return Refuse(row, column, "a whole number");
    }
    query->*field.value = static_cast<int64_t>(number);
    return absl::OkStatus();
  }

  // Converts from the conventions of public files to ours.
  absl::Status Convert(const CsvRow& row, OpQuery* query) const {
    const absl::string_view layout = Cell(row, layout_);
    if (query->op == OpType::kGemm && !layout.empty()) {
      // The columns are the sizes of this product itself.
      const OpQuery of = *query;
      if (layout == "TN") {
        query->pass = QueryPass::kForward;
      } else if (layout == "NN") {
        query->pass = QueryPass::kInputGrad;
        query->n = of.k;
        query->k = of.n;
      } else if (layout == "NT") {
        query->pass = QueryPass::kWeightGrad;
        query->m = of.k;
        query->n = of.m;
        query->k = of.n;
      } else {
        return Refuse(row, layout_, "one of TN, NN, NT");
      }
    }
    if (IsCollective(query->op)) {
      const int per_node = table_.Column({"devices_per_node"});
      if (per_node >= 0 && query->ranks > query->ranks_per_node) {
        query->span = QuerySpan::kInterNode;
      }
      if (query->span == QuerySpan::kNode) query->ranks_per_node = 0;
      query->dtype = QueryDtype::kBf16;
    }
    if (query->op == OpType::kAttention) {
      if (query->kv_heads == 0) query->kv_heads = query->heads;
      query->window = std::max<int64_t>(query->window, 0);  // -1: none.
    }
    return absl::OkStatus();
  }

  const CsvTable& table_;
  const std::string& file_;
  const NameHints hints_;
  OpType guessed_op_ = OpType::kGemm;
  int op_ = -1;
  int norm_ = -1;
  int dtype_ = -1;
  int pass_ = -1;
  int layout_ = -1;
  int mask_ = -1;
  int span_ = -1;
  int device_ = -1;
  int success_ = -1;
  int deterministic_ = -1;
  int tp_ = -1;
  int ep_ = -1;
  int distribution_ = -1;
  int kv_length_ = -1;
  int length_ = -1;
  int value_dim_ = -1;
  int key_dim_ = -1;
  std::vector<std::pair<int, const TimeColumn*>> times_{};
  int64_t left_out_ = 0;
  int32_t first_left_out_ = 0;
  std::string why_{};
};

}  // namespace

absl::StatusOr<MeasurementFile> ParseMeasurements(
    absl::string_view text, const std::string& file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(const CsvTable table, ParseCsv(text, file_name));
  MeasurementFile file;
  file.name = file_name;
  file.content = FingerprintBuilder().Add(text).Build();
  PIPELOOM_RETURN_IF_ERROR(Reader(table, file_name).Read(&file));
  if (file.points.empty()) {
    return ErrorAt(file_name, 1, "holds no measurement");
  }
  return file;
}

}  // namespace pipeloom::formats
