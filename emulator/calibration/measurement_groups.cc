#include "emulator/calibration/measurement_groups.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace pipeloom::emulator {

std::vector<MeasurementGroup> GroupMeasurements(
    absl::Span<const MeasurementFile> files) {
  using Key = std::tuple<OpType, QueryPass, QueryDtype, QueryMask, QuerySpan,
                         int64_t, int64_t>;
  std::map<Key, MeasurementGroup> groups;
  for (size_t f = 0; f < files.size(); ++f) {
    for (const OpMeasurement& point : files[f].points) {
      const OpQuery& q = point.query;
      const Key key(q.op, q.pass, q.dtype, q.mask, q.span, q.ranks,
                    q.ranks_per_node);
      groups[key].points.push_back({&point, static_cast<int32_t>(f)});
    }
  }
  std::vector<MeasurementGroup> sorted;
  sorted.reserve(groups.size());
  for (auto& [key, group] : groups) sorted.push_back(std::move(group));
  return sorted;
}

const std::vector<int64_t OpQuery::*>& SizesOf(OpType op) {
  using Sizes = std::vector<int64_t OpQuery::*>;
  static const Sizes* const gemm =
      new Sizes{&OpQuery::m, &OpQuery::n, &OpQuery::k, &OpQuery::groups};
  static const Sizes* const attention = new Sizes{
      &OpQuery::seq, &OpQuery::batch, &OpQuery::heads, &OpQuery::head_dim};
  static const Sizes* const streaming =
      new Sizes{&OpQuery::tokens, &OpQuery::width};
  static const Sizes* const optimizer = new Sizes{&OpQuery::parameters};
  static const Sizes* const moe = new Sizes{&OpQuery::tokens, &OpQuery::width,
                                            &OpQuery::ffn, &OpQuery::top_k};
  static const Sizes* const small = new Sizes{&OpQuery::kernels};
  static const Sizes* const collective = new Sizes{&OpQuery::bytes};
  if (IsCollective(op)) return *collective;
  if (IsStreaming(op)) return *streaming;
  switch (op) {
    case OpType::kAttention:
      return *attention;
    case OpType::kOptimizer:
      return *optimizer;
    case OpType::kMoe:
      return *moe;
    case OpType::kSmallLayer:
      return *small;
    default:
      return *gemm;
  }
}

double RooflineUs(const OpQuery& query, const DeviceLimits& limits) {
  const auto known = [](double rate, double typical) {
    return rate > 0 ? rate : typical;
  };
  if (IsCollective(query.op)) {
    return static_cast<double>(query.bytes) /
           known(limits.link_bytes_per_second, 3e11) * 1e6;
  }
  double peak = known(limits.bf16_flops_per_second, 3e14);
  if (query.dtype == QueryDtype::kFp8) {
    peak = known(limits.fp8_flops_per_second, 2 * peak);
  }
  return std::max(FlopsOf(query) / (0.8 * peak),
                  MemoryBytesOf(query) /
                      known(limits.memory_bytes_per_second, 2e12)) *
         1e6;
}

}  // namespace pipeloom::emulator
