#include "formats/profile/collective_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "formats/profile/op_names.h"

namespace pipeloom::formats {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int64_t kMaxRanks = 1 << 24;
constexpr double kMaxUs = 1e12;
constexpr double kMaxRate = 1e15;
constexpr double kMaxLatencyUs = 1e9;
constexpr size_t kMaxCurves = 10'000;

void ReadSizes(ObjectReader& reader, absl::string_view name,
               std::vector<int64_t>* out) {
  reader.ForEach(name, [&](const JsonValue& item, const std::string& path) {
    reader.ParseInteger(item, path, 1, kMaxBytes, &out->emplace_back());
  });
}

void ReadCurve(ObjectReader& reader, CollectiveCurve* curve) {
  for (const char* name : {"op", "ranks", "bytes", "us"}) reader.Require(name);
  std::string op;
  reader.Read("op", &op);
  const std::optional<OpType> type = OpTypeOf(op);
  if (reader.ok() && reader.Has("op")) {
    if (type.has_value() && IsCollective(*type)) {
      curve->op = *type;
    } else {
      reader.Refuse("op",
                    "one of all_reduce, all_gather, reduce_scatter, "
                    "all_to_all, send_recv");
    }
  }
  std::string span(Name(curve->span));
  reader.Read("span", &span);
  if (const std::optional<QuerySpan> known = SpanOf(span)) {
    curve->span = *known;
  } else if (reader.ok()) {
    reader.Refuse("span", absl::StrCat("one of ", kSpanWords));
  }
  reader.Read("ranks", int64_t{2}, kMaxRanks, &curve->ranks);
  ReadSizes(reader, "bytes", &curve->bytes);
  ReadSizes(reader, "estimated", &curve->estimated);
  reader.ForEach("us", [&](const JsonValue& item, const std::string& path) {
    reader.ParseNumber(item, path, 0, kMaxUs, &curve->us.emplace_back());
  });
}

// Returns the shortest text that reads back equal.
std::string Number(double value) {
  for (int digits = 6; digits < 17; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    double again = 0;
    if (absl::SimpleAtod(text, &again) && again == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string Line(const CollectiveCurve& curve) {
  std::string text = absl::StrFormat(
      "{\"op\": \"%s\", \"span\": \"%s\", \"ranks\": %d, \"bytes\": [%s], "
      "\"us\": [%s]",
      Name(curve.op), Name(curve.span), curve.ranks,
      absl::StrJoin(curve.bytes, ", "),
      absl::StrJoin(curve.us, ", ", [](std::string* out, double us) {
        absl::StrAppend(out, Number(us));
      }));
  if (!curve.estimated.empty()) {
    absl::StrAppend(&text, ", \"estimated\": [",
                    absl::StrJoin(curve.estimated, ", "), "]");
  }
  return text + "}";
}

}  // namespace

void ReadCollectives(ObjectReader& reader, CollectiveProfile* out) {
  reader.Read("nic_bytes_per_second", 0.0, kMaxRate,
              &out->nic_bytes_per_second);
  reader.Read("node_bytes_per_second", 0.0, kMaxRate,
              &out->node_bytes_per_second);
  reader.Read("node_latency_us", 0.0, kMaxLatencyUs, &out->node_latency_us);
  reader.Read("nic_latency_us", 0.0, kMaxLatencyUs, &out->nic_latency_us);
  reader.Read("gpus_per_node", int64_t{1}, kMaxRanks, &out->gpus_per_node);
  reader.Read("compute_slowdown", 1.0, 10.0, &out->compute_slowdown);
  reader.Read("communication_slowdown", 1.0, 10.0,
              &out->communication_slowdown);
  reader.Read("source", &out->source);
  reader.ReadObjects("curves", [&](ObjectReader& r) {
    if (out->curves.size() >= kMaxCurves) {
      r.Fail(r.line(), absl::StrCat("more than ", kMaxCurves, " curves"));
      return;
    }
    ReadCurve(r, &out->curves.emplace_back());
  });
  if (!reader.ok()) return;
  std::stable_sort(out->curves.begin(), out->curves.end(),
                   [](const CollectiveCurve& a, const CollectiveCurve& b) {
                     return std::tuple(a.op, a.span, a.ranks) <
                            std::tuple(b.op, b.span, b.ranks);
                   });
  const absl::Status valid = ValidateCollectiveProfile(*out);
  if (!valid.ok()) reader.Fail(reader.line(), valid.message());
}

std::string PrintCollectives(const CollectiveProfile& profile, int indent) {
  const std::string margin(static_cast<size_t>(indent), ' ');
  std::string text = absl::StrCat(
      "{\n", margin,
      "  \"nic_bytes_per_second\": ", Number(profile.nic_bytes_per_second),
      ",\n", margin, "  \"gpus_per_node\": ", profile.gpus_per_node, ",\n",
      margin,
      "  \"node_bytes_per_second\": ", Number(profile.node_bytes_per_second));
  if (profile.node_latency_us > 0 || profile.nic_latency_us > 0) {
    absl::StrAppend(&text, ",\n", margin,
                    "  \"node_latency_us\": ", Number(profile.node_latency_us),
                    ",\n", margin,
                    "  \"nic_latency_us\": ", Number(profile.nic_latency_us));
  }
  absl::StrAppend(&text, ",\n", margin,
                  "  \"compute_slowdown\": ", Number(profile.compute_slowdown),
                  ",\n", margin, "  \"communication_slowdown\": ",
                  Number(profile.communication_slowdown), ",\n", margin,
                  "  \"source\": ", Quoted(profile.source), ",\n", margin,
                  "  \"curves\": [");
  for (size_t i = 0; i < profile.curves.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "\n" : ",\n", margin, "    ",
                    Line(profile.curves[i]));
  }
  if (!profile.curves.empty()) absl::StrAppend(&text, "\n", margin, "  ");
  return absl::StrCat(text, "]\n", margin, "}");
}

}  // namespace pipeloom::formats
