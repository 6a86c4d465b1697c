#include "emulator/calibration/measurement_checks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "emulator/calibration/measurement_groups.h"
#include "emulator/calibration/warmth_check.h"
#include "emulator/network/ring_model.h"

namespace pipeloom::emulator {
namespace {

constexpr size_t kMaxOfAKind = 3;
// Margin for clocks above the nominal ones and for rounding of small times.
constexpr double kOverPeak = 1.05;
// Reductions inside the network let an all_reduce exceed its link.
constexpr double kInNetworkReduction = 2;
// Up to this size a last-level cache may serve all of an operator.
constexpr double kCachedBytes = 512e6;
constexpr double kCacheSpeedup = 20;
// Longest over shortest time of one shape; small all_to_alls on one node have
// two modes.
constexpr double kDisagreement = 2;
constexpr double kCollectiveDisagreement = 3;
// Fails if twice the work takes half the time.
constexpr double kMoreWork = 2;
constexpr double kLessTime = 0.5;
constexpr double kLessCollectiveTime = 0.33;
constexpr double kNoisyShare = 0.03;  // Share of comparisons.
// Experts may have two matrices instead of three, and visits may coincide.
constexpr double kLeastOfExperts = 0.5;
// Least share of the peak that the best of the large products reaches: 0.74 to
// 0.93 on six GPUs.
constexpr double kLargeProduct = 1e11;  // FLOPs.
constexpr double kLeastEfficiency = 0.45;
constexpr int kLeastLargeProducts = 5;
// Products that compute bounds on any GPU: of the 20,000 public times of ten
// GPUs none is below 0.078 of the best rate of its type.
constexpr double kComputeBound = 1e10;   // FLOPs.
constexpr int64_t kComputeWidth = 1024;  // The least of m, n, k.
constexpr double kLeastOfBest = 0.02;
constexpr double kUnitMargin = 0.7;  // Around 10^3 and 10^6, as power of 10.

std::string Where(absl::Span<const MeasurementFile> files,
                  const MeasuredPoint& at) {
  return absl::StrCat(files[static_cast<size_t>(at.file)].name, ":",
                      at.point->line);
}

class Checker {
 public:
  Checker(absl::Span<const MeasurementFile> files, const DeviceLimits& limits)
      : files_(files), limits_(limits), groups_(GroupMeasurements(files)) {}

  std::vector<Refusal> Run() {
    CheckDevices();
    CheckFiles();
    for (const MeasurementGroup& group : groups_) {
      CheckRates(group);
      CheckBestRate(group);
      CheckSlowest(group);
      CheckRepeats(group);
      CheckGrowth(group);
      CheckWarmth(group);
    }
    CheckCounts();
    std::stable_sort(
        found_.begin(), found_.end(),
        [](const Refusal& a, const Refusal& b) { return a.kind < b.kind; });
    return std::move(found_);
  }

 private:
  void Refuse(RefusalKind kind, std::string why) {
    if (++count_[static_cast<size_t>(kind)] > kMaxOfAKind) return;
    found_.push_back({kind, std::move(why)});
  }

  void CheckDevices() {
    for (const MeasurementFile& file : files_) {
      for (const DeviceMention& mention : file.devices) {
        if (SameDevice(mention.device, limits_.name)) continue;
        Refuse(RefusalKind::kMislabelled,
               absl::StrCat(
                   file.name,
                   mention.line > 0 ? absl::StrCat(":", mention.line, ": says")
                                    : std::string(": its name says"),
                   " device ", mention.device, ", not ", limits_.name));
      }
    }
  }

  void CheckFiles() {
    std::map<Fingerprint, const MeasurementFile*> seen;
    for (const MeasurementFile& file : files_) {
      const auto [at, is_new] = seen.emplace(file.content, &file);
      if (is_new) continue;
      Refuse(RefusalKind::kDuplicateFile,
             absl::StrCat(file.name, ": holds the same bytes as ",
                          at->second->name,
                          "; one of them is a copy under a wrong name"));
    }
  }

  double Peak(QueryDtype dtype) const {
    return dtype == QueryDtype::kFp8 ? limits_.fp8_flops_per_second
                                     : limits_.bf16_flops_per_second;
  }

  void CheckRates(const MeasurementGroup& group) {
    const QueryDtype dtype = group.query().dtype;
    const double peak = Peak(dtype);
    if (dtype == QueryDtype::kFp8 && peak <= 0 &&
        limits_.bf16_flops_per_second > 0) {
      Refuse(RefusalKind::kMislabelled,
             absl::StrCat(Where(files_, group.points[0]), ": fp8, which ",
                          limits_.name, " has no units for"));
      return;
    }
    for (const MeasuredPoint& at : group.points) {
      const OpQuery& q = at.point->query;
      const double seconds = at.point->time_us * 1e-6;
      const double least = q.op == OpType::kMoe ? kLeastOfExperts : 1;
      const double flops = least * FlopsOf(q) / seconds;
      if (peak > 0 && flops > peak * kOverPeak) {
        RefuseRate(at, absl::StrFormat("%.0f TFLOP/s", flops * 1e-12),
                   absl::StrFormat("%.0f in %s", peak * 1e-12, Name(dtype)));
        continue;
      }
      CheckBandwidth(at, least * MemoryBytesOf(q), seconds);
      const double link = limits_.link_bytes_per_second;
      if (!IsCollective(q.op) || q.span != QuerySpan::kNode || link <= 0) {
        continue;
      }
      const double wire =
          static_cast<double>(q.bytes) * WireShare(q.op, q.ranks) / seconds;
      const double most =
          link * (q.op == OpType::kAllReduce ? kInNetworkReduction : kOverPeak);
      if (wire > most) {
        RefuseRate(at, absl::StrFormat("%.0f GB/s on the wire", wire * 1e-9),
                   absl::StrFormat("%.0f", link * 1e-9));
      }
    }
  }

  void CheckBandwidth(const MeasuredPoint& at, double bytes, double seconds) {
    const double memory = limits_.memory_bytes_per_second;
    if (memory <= 0 || bytes <= 0) return;
    const double most =
        memory * (bytes > kCachedBytes ? kOverPeak : kCacheSpeedup);
    if (bytes / seconds <= most) return;
    RefuseRate(at, absl::StrFormat("%.0f GB/s", bytes / seconds * 1e-9),
               absl::StrFormat("%.0f of memory", memory * 1e-9));
  }

  void RefuseRate(const MeasuredPoint& at, absl::string_view rate,
                  absl::string_view most) {
    Refuse(RefusalKind::kNonPhysical,
           absl::StrFormat("%s: %s in %.3g us are %s; %s can do %s. Another "
                           "device or type than it says, or a timer that "
                           "stopped early",
                           Where(files_, at), ToString(at.point->query),
                           at.point->time_us, rate, limits_.name, most));
  }

  void CheckBestRate(const MeasurementGroup& group) {
    const double peak = Peak(group.query().dtype);
    if (group.query().op != OpType::kGemm || peak <= 0 ||
        group.query().dtype == QueryDtype::kFp32) {
      return;
    }
    double best = 0;
    int large = 0;
    for (const MeasuredPoint& at : group.points) {
      const double flops = FlopsOf(at.point->query);
      if (flops < kLargeProduct) continue;
      ++large;
      best = std::max(best, flops / (at.point->time_us * 1e-6));
    }
    if (large < kLeastLargeProducts || best >= kLeastEfficiency * peak) return;
    Refuse(
        RefusalKind::kMislabelled,
        absl::StrFormat("%s: the best of %d large products reaches %.0f of "
                        "%.0f TFLOP/s (%s %s); any GPU reaches %.0f %%. A "
                        "slower device than %s, or another type",
                        files_[static_cast<size_t>(group.points[0].file)].name,
                        large, best * 1e-12, peak * 1e-12,
                        Name(group.query().pass), Name(group.query().dtype),
                        100 * kLeastEfficiency, limits_.name));
  }

  // Compares large products with the best of their file.
  void CheckSlowest(const MeasurementGroup& group) {
    const OpType op = group.query().op;
    if (op != OpType::kGemm && op != OpType::kGroupedGemm) return;
    const auto rate = [](const MeasuredPoint& at) {
      return FlopsOf(at.point->query) / (at.point->time_us * 1e-6);
    };
    std::map<int32_t, MeasuredPoint> best;
    for (const MeasuredPoint& at : group.points) {
      const auto [found, is_new] = best.emplace(at.file, at);
      if (rate(at) > rate(found->second)) found->second = at;
    }
    for (const MeasuredPoint& at : group.points) {
      const OpQuery& q = at.point->query;
      const double flops = FlopsOf(q);
      if (flops < kComputeBound || std::min({q.m, q.n, q.k}) < kComputeWidth) {
        continue;
      }
      const MeasuredPoint& fastest = best.at(at.file);
      const double slower = rate(fastest) / rate(at);
      if (slower * kLeastOfBest <= 1) continue;
      const double off = std::log10(slower);
      const double unit = 3 * std::round(off / 3);  // ns, us, ms, s.
      const bool is_unit = unit > 0 && std::abs(off - unit) < kUnitMargin;
      Refuse(RefusalKind::kNonPhysical,
             absl::StrFormat(
                 "%s: %s in %.4g us is %.3g TFLOP/s, %.4g times slower than "
                 "%.3g at %s; any product of such sizes reaches %.0f %% of "
                 "that. %s",
                 Where(files_, at), ToString(q), at.point->time_us,
                 rate(at) * 1e-12, slower, rate(fastest) * 1e-12,
                 Where(files_, fastest), 100 * kLeastOfBest,
                 is_unit ? absl::StrFormat("Is the unit right? It is about "
                                           "1e%.0f times too long",
                                           unit)
                         : std::string("Was the GPU interrupted?")));
    }
  }

  using Sizes = std::vector<int64_t>;
  static Sizes AllSizes(const OpQuery& q) {
    Sizes sizes;
    for (const QueryField& field : FieldsOf(q.op)) {
      sizes.push_back(q.*field.value);
    }
    return sizes;
  }

  void CheckRepeats(const MeasurementGroup& group) {
    std::map<Sizes, std::pair<MeasuredPoint, MeasuredPoint>> extremes;
    for (const MeasuredPoint& at : group.points) {
      const auto [found, is_new] =
          extremes.emplace(AllSizes(at.point->query), std::pair(at, at));
      auto& [least, most] = found->second;
      if (at.point->time_us < least.point->time_us) least = at;
      if (at.point->time_us > most.point->time_us) most = at;
    }
    const double allowed = IsCollective(group.query().op)
                               ? kCollectiveDisagreement
                               : kDisagreement;
    for (const auto& [sizes, range] : extremes) {
      const auto& [least, most] = range;
      if (most.point->time_us <= allowed * least.point->time_us) continue;
      Refuse(RefusalKind::kDisagreeing,
             absl::StrFormat("%s: %s takes %.4g us, and %.4g us at %s",
                             Where(files_, most), ToString(most.point->query),
                             most.point->time_us, least.point->time_us,
                             Where(files_, least)));
    }
  }

  // Compares points along one size with all else equal, in one file.
  void CheckGrowth(const MeasurementGroup& group) {
    struct Drop {
      MeasuredPoint from{};
      MeasuredPoint to{};
      double ratio = 1;
    };
    const double less_time =
        IsCollective(group.query().op) ? kLessCollectiveTime : kLessTime;
    int64_t compared = 0;
    int64_t drops = 0;
    Drop worst;
    for (const auto size : SizesOf(group.query().op)) {
      std::map<std::pair<int32_t, Sizes>, std::vector<MeasuredPoint>> lines;
      for (const MeasuredPoint& at : group.points) {
        OpQuery rest = at.point->query;
        rest.*size = 0;
        lines[{at.file, AllSizes(rest)}].push_back(at);
      }
      for (auto& [key, line] : lines) {
        std::stable_sort(
            line.begin(), line.end(),
            [size](const MeasuredPoint& a, const MeasuredPoint& b) {
              return a.point->query.*size < b.point->query.*size;
            });
        size_t smaller = 0;  // Points of at most half the size.
        MeasuredPoint longest;
        for (const MeasuredPoint& at : line) {
          const auto value = static_cast<double>(at.point->query.*size);
          while (static_cast<double>(line[smaller].point->query.*size) *
                     kMoreWork <=
                 value) {
            const MeasuredPoint& small = line[smaller++];
            if (longest.point == nullptr ||
                small.point->time_us > longest.point->time_us) {
              longest = small;
            }
          }
          if (longest.point == nullptr) continue;
          ++compared;
          const double ratio = at.point->time_us / longest.point->time_us;
          if (ratio >= less_time) continue;
          ++drops;
          if (ratio < worst.ratio) worst = {longest, at, ratio};
        }
      }
    }
    if (drops == 0 || static_cast<double>(drops) <=
                          kNoisyShare * static_cast<double>(compared)) {
      return;
    }
    Refuse(RefusalKind::kNonMonotone,
           absl::StrFormat(
               "%s: %s takes %.4g us, but the smaller %s (%s) %.4g us; %d of "
               "%d comparisons are like that",
               Where(files_, worst.to), ToString(worst.to.point->query),
               worst.to.point->time_us, ToString(worst.from.point->query),
               Where(files_, worst.from), worst.from.point->time_us, drops,
               compared));
  }

  void CheckWarmth(const MeasurementGroup& group) {
    // Transfers between GPUs have no clock to warm up, and their curves are
    // separate for each size.
    if (IsCollective(group.query().op)) return;
    for (size_t f = 0; f < files_.size(); ++f) {
      std::vector<const OpMeasurement*> rows;
      for (const MeasuredPoint& at : group.points) {
        if (static_cast<size_t>(at.file) == f) rows.push_back(at.point);
      }
      const Warmth warmth = MeasureWarmth(rows, limits_);
      const std::string of = absl::StrCat(
          files_[f].name, ": ", Name(group.query().op), " ",
          Name(group.query().pass), " ", Name(group.query().dtype));
      if (warmth.cold()) {
        Refuse(RefusalKind::kColdStart,
               absl::StrFormat("%s: the first %d rows, from line %d on, are "
                               "at least %.2g times slower than shapes next "
                               "to them; measure after a warm-up",
                               of, warmth.first_count, rows[0]->line,
                               warmth.first_rows));
      } else if (warmth.drifts()) {
        Refuse(RefusalKind::kColdStart,
               absl::StrFormat("%s: the first third of the rows is %.2f times "
                               "as slow as the last, for like shapes; clocks "
                               "were not steady",
                               of, warmth.drift));
      }
    }
  }

  void CheckCounts() {
    for (const MeasurementGroup& group : groups_) {
      const OpQuery& query = group.query();
      std::set<Sizes> shapes;
      for (const MeasuredPoint& at : group.points) {
        shapes.insert(AllSizes(at.point->query));
      }
      size_t least = 4;
      if (query.op == OpType::kGemm) least = 8;
      if (query.op == OpType::kOptimizer) least = 2;
      if (query.op == OpType::kSmallLayer) least = 1;
      if (shapes.size() >= least) continue;
      std::string of = absl::StrCat(Name(query.op), " ", Name(query.pass), " ",
                                    Name(query.dtype));
      if (IsCollective(query.op)) {
        of = absl::StrCat(Name(query.op), " of ", query.ranks, " ranks, ",
                          Name(query.span));
      }
      Refuse(RefusalKind::kTooFew,
             absl::StrFormat("%s: %d shapes, the first at %s; there must be "
                             "%d to interpolate between",
                             of, shapes.size(), Where(files_, group.points[0]),
                             least));
    }
    if (groups_.empty()) {
      Refuse(RefusalKind::kTooFew, "there are no measurements");
    }
  }

  absl::Span<const MeasurementFile> files_;
  const DeviceLimits& limits_;
  std::vector<MeasurementGroup> groups_;
  std::vector<Refusal> found_{};
  size_t count_[kNumRefusalKinds] = {};
};

// Returns "h100" for "NVIDIA H100 80GB HBM3"; "" if there is no model.
std::string ModelOf(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    const size_t letters = static_cast<size_t>(
        std::find_if(word.begin(), word.end(), absl::ascii_isdigit) -
        word.begin());
    // One or two letters and at least two digits: not "80gb", "sxm4", "hbm3".
    if (letters < 1 || letters > 2 || word.size() < letters + 2) continue;
    return word;
  }
  return "";
}

std::string FormOf(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    for (const char* form : {"sxm", "pcie", "nvl"}) {
      if (absl::StartsWith(word, form)) return form;
    }
  }
  return "";
}

}  // namespace

absl::string_view Name(RefusalKind kind) {
  switch (kind) {
    case RefusalKind::kMislabelled:
      return "mislabelled";
    case RefusalKind::kDuplicateFile:
      return "duplicate-file";
    case RefusalKind::kDisagreeing:
      return "disagreeing";
    case RefusalKind::kNonPhysical:
      return "non-physical";
    case RefusalKind::kNonMonotone:
      return "non-monotone";
    case RefusalKind::kColdStart:
      return "cold-start";
    case RefusalKind::kTooFew:
      return "too-few";
  }
  return "";
}

bool SameDevice(absl::string_view mention, absl::string_view name) {
  const auto words_of = [](absl::string_view text) {
    const std::string lower = absl::AsciiStrToLower(text);
    return std::vector<std::string>(
        absl::StrSplit(lower, absl::ByAnyChar(" -_"), absl::SkipEmpty()));
  };
  const std::vector<std::string> a = words_of(mention);
  const std::vector<std::string> b = words_of(name);
  const std::string model = ModelOf(a);
  if (model.empty() || ModelOf(b).empty()) return a == b;
  if (model != ModelOf(b)) return false;
  const std::string form = FormOf(a);
  return form.empty() || FormOf(b).empty() || form == FormOf(b);
}

std::vector<Refusal> CheckMeasurements(absl::Span<const MeasurementFile> files,
                                       const DeviceLimits& limits) {
  return Checker(files, limits).Run();
}

}  // namespace pipeloom::emulator
