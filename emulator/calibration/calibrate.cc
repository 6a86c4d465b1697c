#include "emulator/calibration/calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace pipeloom::emulator {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2;
}

// Replaces the values by the nearest ones, in the square of differences, that
// do not descend.
void MakeAscend(std::vector<double>* values) {
  struct Block {
    double mean = 0;
    int64_t count = 0;
  };
  std::vector<Block> blocks;
  for (const double value : *values) {
    blocks.push_back({value, 1});
    while (blocks.size() > 1 &&
           blocks[blocks.size() - 2].mean > blocks.back().mean) {
      const Block last = blocks.back();
      blocks.pop_back();
      Block& before = blocks.back();
      const auto a = static_cast<double>(before.count);
      const auto b = static_cast<double>(last.count);
      before.mean = (before.mean * a + last.mean * b) / (a + b);
      before.count += last.count;
    }
  }
  size_t i = 0;
  for (const Block& block : blocks) {
    for (int64_t n = 0; n < block.count; ++n) (*values)[i++] = block.mean;
  }
}

double LaunchUs(absl::Span<const OpMeasurement> points) {
  std::vector<double> launches;
  for (const OpMeasurement& point : points) {
    if (point.query.op != OpType::kSmallLayer) continue;
    launches.push_back(point.time_us /
                       static_cast<double>(point.query.kernels));
  }
  return launches.empty() ? 0
                          : *std::min_element(launches.begin(), launches.end());
}

template <typename Table, typename Key>
void Merge(std::vector<Table> from, Key key, std::vector<Table>* into) {
  for (Table& table : from) {
    const auto same = std::find_if(
        into->begin(), into->end(),
        [&](const Table& other) { return key(other) == key(table); });
    if (same == into->end()) {
      into->push_back(std::move(table));
    } else {
      *same = std::move(table);
    }
  }
}

// Returns the base with the measured tables in place of its tables of the same
// kind.
DeviceProfile Merged(DeviceProfile base, DeviceProfile measured) {
  const auto kind = [](const auto& t) { return std::tuple(t.pass, t.dtype); };
  Merge(std::move(measured.gemm), kind, &base.gemm);
  Merge(std::move(measured.moe), kind, &base.moe);
  Merge(
      std::move(measured.attention),
      [](const AttentionTable& t) {
        return std::tuple(t.pass, t.dtype, t.mask);
      },
      &base.attention);
  Merge(
      std::move(measured.stream),
      [](const StreamTable& t) { return std::tuple(t.op, t.pass, t.dtype); },
      &base.stream);
  const auto curve = [](const CollectiveCurve& c) {
    return std::tuple(c.op, c.span, c.ranks);
  };
  Merge(std::move(measured.collectives.curves), curve,
        &base.collectives.curves);
  std::sort(base.collectives.curves.begin(), base.collectives.curves.end(),
            [&](const auto& a, const auto& b) { return curve(a) < curve(b); });
  if (measured.launch_us > 0) base.launch_us = measured.launch_us;
  base.device = measured.device;
  base.derived_from.clear();
  base.rates = measured.rates;
  return base;
}

bool IsProduct(OpType op) {
  return op == OpType::kGemm || op == OpType::kGroupedGemm;
}

// Returns which kind of products these are for a profile: one type of 16 bits,
// and fp8.
bool IsFp8(QueryDtype dtype) { return dtype == QueryDtype::kFp8; }

// Names the rows that a profile does not use, and says why; "" if it uses them.
// `seen` are all rows.
class UnusedRows {
 public:
  UnusedRows(absl::Span<const MeasurementFile> seen,
             const DeviceProfile& base) {
    for (const MeasurementFile& file : seen) {
      for (const OpMeasurement& point : file.points) {
        const OpQuery& q = point.query;
        if (q.pass != QueryPass::kForward || !ByItself(q).empty()) continue;
        if (IsProduct(q.op)) has_product_[IsFp8(q.dtype)] = true;
        if (q.op == OpType::kAttention) has_attention_ = true;
      }
    }
    for (const GemmTable& t : base.gemm) {
      if (t.pass == QueryPass::kForward && t.dtype != QueryDtype::kFp32) {
        has_product_[IsFp8(t.dtype)] = true;
      }
    }
    for (const AttentionTable& t : base.attention) {
      if (t.pass == QueryPass::kForward && BytesPerElement(t.dtype) == 2) {
        has_attention_ = true;
      }
    }
  }

  std::string Why(const OpQuery& q) const {
    std::string why = ByItself(q);
    if (!why.empty() || q.pass == QueryPass::kForward) return why;
    if ((IsProduct(q.op) && !has_product_[IsFp8(q.dtype)]) ||
        (q.op == OpType::kAttention && !has_attention_)) {
      return absl::StrCat("rows of ", Name(q.op), " ", Name(q.pass), " ",
                          Name(q.dtype),
                          ": they correct forward times of their type, which "
                          "were not measured");
    }
    return "";
  }

 private:
  static std::string ByItself(const OpQuery& q) {
    constexpr int64_t kAligned = 8;
    if (IsProduct(q.op) && q.dtype == QueryDtype::kFp32) {
      return absl::StrCat("rows of ", Name(q.op),
                          " fp32: such products are priced by the peak and "
                          "the memory's bandwidth");
    }
    if (q.op == OpType::kGemm && !IsFp8(q.dtype) &&
        (q.n % kAligned != 0 || q.k % kAligned != 0)) {
      return "products of widths that are no multiple of 8, which have a rate "
             "of their own";
    }
    if (q.op == OpType::kMoe) {
      return "rows of moe: it is priced as the sum of its parts; measure "
             "grouped_gemm, swiglu and add";
    }
    if ((q.op == OpType::kAttention || IsStreaming(q.op)) &&
        BytesPerElement(q.dtype) != 2) {
      return absl::StrCat("rows of ", Name(q.op), " ", Name(q.dtype),
                          ": its times are of 16-bit types");
    }
    if (!IsCollective(q.op)) return "";
    if (q.ranks < 2) {
      return absl::StrCat("rows of ", Name(q.op),
                          " with ranks 1: nothing is sent");
    }
    if (q.span == QuerySpan::kInterNode && q.ranks_per_node > 1) {
      return absl::StrCat("rows of ", Name(q.op),
                          " between nodes with ranks_per_node above 1: such "
                          "groups are priced by the ring model");
    }
    return "";
  }

  bool has_product_[2] = {};  // Indexed by IsFp8.
  bool has_attention_ = false;
};

std::string Listed(const std::vector<Refusal>& refusals) {
  std::string text;
  for (const Refusal& refusal : refusals) {
    absl::StrAppend(&text, "\n  ", Name(refusal.kind), ": ", refusal.why);
  }
  return text;
}

}  // namespace

std::vector<CollectiveCurve> CurvesOfPoints(
    absl::Span<const OpMeasurement> points) {
  using Key = std::tuple<OpType, QuerySpan, int64_t>;
  std::map<Key, std::map<int64_t, std::vector<double>>> curves;
  for (const OpMeasurement& point : points) {
    const OpQuery& q = point.query;
    if (!IsCollective(q.op) || q.ranks < 2) continue;
    if (q.span == QuerySpan::kInterNode && q.ranks_per_node > 1) continue;
    curves[{q.op, q.span, q.ranks}][q.bytes].push_back(point.time_us);
  }
  std::vector<CollectiveCurve> result;
  for (auto& [key, sizes] : curves) {
    CollectiveCurve curve;
    std::tie(curve.op, curve.span, curve.ranks) = key;
    std::vector<double> logs;
    for (auto& [bytes, times] : sizes) {
      curve.bytes.push_back(bytes);
      logs.push_back(std::log(Median(std::move(times))));
    }
    MakeAscend(&logs);
    for (const double log : logs) curve.us.push_back(std::exp(log));
    // Equal values of a block may differ in the last bit.
    for (size_t i = 1; i < curve.us.size(); ++i) {
      curve.us[i] = std::max(curve.us[i], curve.us[i - 1]);
    }
    result.push_back(std::move(curve));
  }
  return result;
}

DeviceProfile ProfileOfMeasurements(absl::Span<const OpMeasurement> points,
                                    const DeviceLimits& limits) {
  DeviceProfile profile = ProfileOfPoints(points);
  profile.device = limits.name;
  profile.rates.bf16_flops_per_second = limits.bf16_flops_per_second;
  profile.rates.fp8_flops_per_second = limits.fp8_flops_per_second;
  profile.rates.bytes_per_second = limits.memory_bytes_per_second;
  profile.rates.multiprocessors = limits.multiprocessors;
  profile.launch_us = LaunchUs(points);
  profile.collectives.curves = CurvesOfPoints(points);
  return profile;
}

absl::StatusOr<Calibration> Calibrate(absl::Span<const MeasurementFile> files,
                                      const CalibrationOptions& options,
                                      const PredictWith& predict_with) {
  Calibration result;
  std::vector<Refusal> refused;
  for (Refusal& refusal : CheckMeasurements(files, options.limits)) {
    const bool accepted = options.accept.count(refusal.kind) > 0;
    (accepted ? result.accepted : refused).push_back(std::move(refusal));
  }
  if (!refused.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the measurements are refused:", Listed(refused)));
  }
  const UnusedRows unused(files, options.base);
  std::vector<OpMeasurement> points;
  std::vector<OpMeasurement> judged;
  std::map<std::string, int64_t> left_out;
  for (const MeasurementFile& file : files) {
    for (const OpMeasurement& point : file.points) {
      std::string why = unused.Why(point.query);
      if (!why.empty()) {
        ++left_out[std::move(why)];
        continue;
      }
      points.push_back(point);
      if (point.query.op != OpType::kSmallLayer) judged.push_back(point);
    }
  }
  for (const auto& [why, rows] : left_out) {
    result.left_out.push_back(absl::StrCat(rows, " ", why));
  }
  if (points.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no measurement is left that a profile has a use for; left out are",
        result.left_out.empty() ? " none" : "",
        absl::StrJoin(result.left_out, "",
                      [](std::string* text, const auto& w) {
                        absl::StrAppend(text, "\n  ", w);
                      })));
  }
  const FitPoints fit = [&](absl::Span<const OpMeasurement> seen) {
    return predict_with(ProfileOfMeasurements(seen, options.limits),
                        options.limits);
  };
  PIPELOOM_ASSIGN_OR_RETURN(result.errors,
                            CrossValidate(judged, options.folds, fit));
  result.profile =
      Merged(options.base, ProfileOfMeasurements(points, options.limits));
  Canonicalize(&result.profile);
  PIPELOOM_RETURN_IF_ERROR(ValidateDeviceProfile(result.profile));
  return result;
}

}  // namespace pipeloom::emulator
