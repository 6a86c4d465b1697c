#include "emulator/calibration/calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
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

bool IsUnaligned(const OpQuery& q) {
  constexpr int64_t kAligned = 8;
  return q.op == OpType::kGemm && q.dtype != QueryDtype::kFp8 &&
         q.dtype != QueryDtype::kFp32 &&
         (q.n % kAligned != 0 || q.k % kAligned != 0);
}

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
  std::vector<OpMeasurement> points;
  for (const MeasurementFile& file : files) {
    for (const OpMeasurement& point : file.points) {
      if (IsUnaligned(point.query)) {
        ++result.unaligned;
      } else {
        points.push_back(point);
      }
    }
  }
  std::vector<OpMeasurement> judged;
  for (const OpMeasurement& point : points) {
    const bool across = point.query.span == QuerySpan::kInterNode &&
                        point.query.ranks_per_node > 1;
    if (point.query.op != OpType::kSmallLayer && !across) {
      judged.push_back(point);
    }
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
