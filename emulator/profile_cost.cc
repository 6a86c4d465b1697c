#include "emulator/profile_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/fingerprint.h"
#include "base/overloaded.h"
#include "emulator/attention_cost.h"
#include "emulator/collective_profile.h"
#include "emulator/gemm_cost.h"
#include "emulator/roofline_cost.h"
#include "emulator/stream_cost.h"

namespace pipeloom::emulator {
namespace {

// The profile's own rates where it is of the cluster's device, so that its
// points are exact; else those of the cluster.
DeviceRates RatesFor(const ClusterSpec& cluster, const DeviceProfile& profile) {
  const DeviceSpec& device = cluster.device;
  if (device.name == profile.device && profile.derived_from.empty()) {
    return profile.rates;
  }
  DeviceRates rates = profile.rates;
  rates.bf16_flops_per_second = device.bf16.flops_per_second;
  rates.fp8_flops_per_second = device.fp8.flops_per_second;
  rates.bytes_per_second = device.memory_bandwidth.bytes_per_second;
  if (profile.derived_multiprocessors > 0) {
    rates.multiprocessors = profile.derived_multiprocessors;
  }
  return rates;
}

Duration ToDuration(double seconds) {
  return Duration(static_cast<int64_t>(std::ceil(seconds * 1e9 - 1e-3)));
}

Fingerprint KeyOf(const GemmOp& op) {
  return FingerprintBuilder()
      .Add(op.m)
      .Add(op.n)
      .Add(op.k)
      .Add(op.groups)
      .Add(op.result_bytes)
      .Add(op.precision)
      .Add(op.pass)
      .Build();
}

Fingerprint KeyOf(const AttentionOp& op) {
  return FingerprintBuilder()
      .Add(op.flops)
      .Add(op.bytes)
      .Add(op.mean_length)
      .Add(op.tokens)
      .Add(op.heads)
      .Add(op.kv_heads)
      .Add(op.head_dim)
      .Add(op.value_dim)
      .Add(op.window)
      .Add(op.causal)
      .Add(op.backward)
      .Build();
}

// Prices seen before. Sharded, so that threads seldom wait for each other; a
// full shard is emptied.
class PriceCache {
 public:
  template <typename Make>
  OpPrice Get(const Fingerprint& key, const Make& make) {
    Shard& shard = shards_[key.low % kShards];
    {
      const std::lock_guard<std::mutex> lock(shard.mutex);
      const auto found = shard.prices.find(key);
      if (found != shard.prices.end()) return found->second;
    }
    const OpPrice price = make();
    const std::lock_guard<std::mutex> lock(shard.mutex);
    if (shard.prices.size() >= kMostInShard) shard.prices.clear();
    shard.prices.emplace(key, price);
    return price;
  }

 private:
  static constexpr size_t kShards = 16;
  static constexpr size_t kMostInShard = 4096;  // About 4 MB in all.
  struct Shard {
    std::mutex mutex{};
    absl::flat_hash_map<Fingerprint, OpPrice> prices{};
  };
  std::array<Shard, kShards> shards_{};
};

}  // namespace

struct ProfileCost::State {
  State(const ClusterSpec& cluster, const ParallelLayout& parallel,
        const DeviceProfile& profile, Duration a_least)
      : least(a_least),
        roofline(cluster, parallel),
        gemm(profile, RatesFor(cluster, profile)),
        attention(profile, RatesFor(cluster, profile)),
        stream(profile, RatesFor(cluster, profile)) {}

  template <typename Op>
  OpPrice Fallback(const Op& op, std::optional<OpSeconds> seconds) const {
    if (!seconds.has_value()) {
      return {roofline.Cost(op), CostSource::kRoofline};
    }
    const Duration time = ToDuration(seconds->seconds);
    if (time < least) return {least, CostSource::kRoofline};
    return {time, seconds->source};
  }

  Duration least;
  RooflineCost roofline;
  GemmCosts gemm;
  AttentionCosts attention;
  StreamCosts stream;
  mutable PriceCache cache{};
};

ProfileCost::ProfileCost(const ClusterSpec& cluster,
                         const ParallelLayout& parallel,
                         const DeviceProfile& profile, Duration least)
    : state_(std::make_unique<const State>(cluster, parallel, profile, least)) {
}

ProfileCost::~ProfileCost() = default;

OpPrice ProfileCost::Price(const Op& op) const {
  const State& state = *state_;
  return std::visit(
      Overloaded{
          [&](const GemmOp& gemm) -> OpPrice {
            if (gemm.flops() <= 0) return {};
            return state.cache.Get(KeyOf(gemm), [&] {
              return state.Fallback(gemm, state.gemm.Price(gemm));
            });
          },
          [&](const AttentionOp& attention) -> OpPrice {
            if (attention.flops <= 0) return {};
            return state.cache.Get(KeyOf(attention), [&] {
              return state.Fallback(attention,
                                    state.attention.Price(attention));
            });
          },
          [&](const MemoryOp& memory) -> OpPrice {
            if (memory.bytes <= 0) return {};
            return state.Fallback(memory, state.stream.Price(memory));
          },
          [&](const auto& other) -> OpPrice {
            return {state.roofline.Cost(other), CostSource::kRoofline};
          },
      },
      op);
}

std::unique_ptr<const OpCostModel> MakeOpCosts(const ClusterSpec& cluster,
                                               const ParallelLayout& parallel,
                                               const DeviceProfile* profile,
                                               Duration least) {
  if (profile == nullptr) {
    return std::make_unique<RooflineCost>(cluster, parallel);
  }
  return std::make_unique<ProfileCost>(cluster, parallel, *profile, least);
}

std::vector<std::string> MissingMeasurements(const DeviceProfile* profile) {
  constexpr absl::string_view kRoofline =
      "roofline (peak rates, fitted efficiencies, least time)";
  if (profile == nullptr) {
    return {absl::StrCat("no device profile: all operators by ", kRoofline)};
  }
  std::vector<std::string> lines;
  const auto miss = [&](absl::string_view what, absl::string_view instead) {
    lines.push_back(absl::StrCat(what, ": ", instead));
  };
  const auto has_gemm = [&](QueryPass pass, bool fp8) {
    return std::any_of(profile->gemm.begin(), profile->gemm.end(),
                       [&](const GemmTable& t) {
                         return t.pass == pass && t.size() > 0 &&
                                (BytesPerElement(t.dtype) == 1) == fp8 &&
                                BytesPerElement(t.dtype) <= 2;
                       });
  };
  for (const bool fp8 : {false, true}) {
    if (fp8 && profile->rates.fp8_flops_per_second <= 0) {
      miss("gemm fp8", "bf16, as the device has no fp8 units");
      continue;
    }
    const absl::string_view type = fp8 ? " fp8" : " bf16";
    const bool forward = has_gemm(QueryPass::kForward, fp8);
    for (const QueryPass pass :
         {QueryPass::kForward, QueryPass::kInputGrad, QueryPass::kWeightGrad}) {
      if (forward && has_gemm(pass, fp8)) continue;
      miss(absl::StrCat("gemm ", Name(pass), type),
           forward ? "the forward product of these sizes, by a fixed ratio"
                   : kRoofline);
    }
  }
  miss("gemm fp32", kRoofline);
  const auto has_attention = [&](QueryPass pass, QueryMask mask) {
    return std::any_of(profile->attention.begin(), profile->attention.end(),
                       [&](const AttentionTable& t) {
                         return t.pass == pass && t.mask == mask &&
                                t.size() > 0 && BytesPerElement(t.dtype) == 2;
                       });
  };
  for (const QueryMask mask : {QueryMask::kCausal, QueryMask::kFull}) {
    const QueryMask other =
        mask == QueryMask::kCausal ? QueryMask::kFull : QueryMask::kCausal;
    const bool forward = has_attention(QueryPass::kForward, mask);
    const bool any = forward || has_attention(QueryPass::kForward, other);
    if (!forward) {
      miss(absl::StrCat("attention ", Name(mask), " forward"),
           any ? absl::StrCat("the kernel of the ", Name(other), " one")
               : std::string(kRoofline));
    }
    if (any && has_attention(QueryPass::kBackward, mask)) continue;
    miss(absl::StrCat("attention ", Name(mask), " backward"),
         !any ? std::string(kRoofline)
         : has_attention(QueryPass::kBackward, other)
             ? absl::StrCat("forward by the ratio of the ", Name(other), " one")
             : std::string("forward by a fixed ratio"));
  }
  const auto has_stream = [&](OpType op, QueryPass pass) {
    return std::any_of(profile->stream.begin(), profile->stream.end(),
                       [&](const StreamTable& t) {
                         return t.op == op && t.pass == pass && t.size() > 0;
                       });
  };
  constexpr std::pair<absl::string_view, MemoryKind> kKinds[] = {
      {"norm", MemoryKind::kNorm},
      {"activation", MemoryKind::kActivation},
      {"gated activation", MemoryKind::kGatedActivation},
      {"rope", MemoryKind::kRotary},
      {"embedding", MemoryKind::kEmbedding},
      {"softmax of the loss", MemoryKind::kLoss},
      {"sum, permutation, modulation", MemoryKind::kOther},
      {"optimizer", MemoryKind::kOptimizer}};
  for (const auto& [name, kind] : kKinds) {
    for (const QueryPass pass : {QueryPass::kForward, QueryPass::kBackward}) {
      if (kind == MemoryKind::kOptimizer && pass == QueryPass::kBackward) {
        continue;
      }
      const QueryPass turned = pass == QueryPass::kForward
                                   ? QueryPass::kBackward
                                   : QueryPass::kForward;
      std::string instead(kRoofline);
      bool found = false;
      for (const OpType op : StreamOpsOf(kind)) {
        const bool first = op == StreamOpsOf(kind).front();
        if (has_stream(op, pass)) {
          found = first;
          instead =
              absl::StrCat("the bandwidth of ", Name(op), " ", Name(pass));
          break;
        }
        if (has_stream(op, turned)) {
          instead =
              absl::StrCat("the bandwidth of ", Name(op), " ", Name(turned));
          break;
        }
      }
      if (!found) miss(absl::StrCat(name, " ", Name(pass)), instead);
    }
  }
  miss("convolutional parts", kRoofline);
  if (profile->collectives.empty()) {
    miss("collectives", "latency and bandwidth of the cluster's links");
  }
  return lines;
}

void FitProfile(DeviceProfile* profile) {
  for (GemmTable& table : profile->gemm) {
    if (table.pass != QueryPass::kForward || table.size() == 0 ||
        table.fit.size() == kGemmConstants) {
      continue;
    }
    const GemmConstants fit = FitGemm(table, profile->rates);
    table.fit.assign(fit.begin(), fit.end());
  }
  for (AttentionTable& table : profile->attention) {
    if (table.pass != QueryPass::kForward || table.size() == 0 ||
        table.fit.size() == kAttentionConstants) {
      continue;
    }
    const AttentionConstants fit = FitAttention(table, profile->rates);
    table.fit.assign(fit.begin(), fit.end());
  }
}

}  // namespace pipeloom::emulator
