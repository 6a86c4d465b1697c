#include "emulator/cost/profile_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/fingerprint.h"
#include "base/mutex.h"
#include "base/overloaded.h"
#include "emulator/cost/attention_cost.h"
#include "emulator/cost/gemm_cost.h"
#include "emulator/cost/roofline_cost.h"
#include "emulator/cost/stream_cost.h"
#include "emulator/network/collective_cost.h"
#include "emulator/network/collective_profile.h"
#include "emulator/network/group_placement.h"
#include "emulator/network/ring_model.h"

namespace pipeloom::emulator {
namespace {

// Allows for rounding in data sheets.
bool SameRate(double a, double b) { return std::abs(a - b) <= 1e-3 * b; }

// Returns whether the profile is of the cluster's device as it was measured.
bool IsOwn(const ClusterSpec& cluster, const DeviceProfile& profile) {
  return cluster.device.name == profile.device && profile.derived_from.empty();
}

// Returns the rates of the cluster's device. Where the profile is of that
// device as it was measured, each rate that has not changed is the profile's
// own, so that points of operators which use no other are exact.
DeviceRates RatesFor(const ClusterSpec& cluster, const DeviceProfile& profile) {
  const DeviceSpec& device = cluster.device;
  const bool own = IsOwn(cluster, profile);
  DeviceRates rates = profile.rates;
  const auto take = [&](double now, double* rate) {
    if (!own || !SameRate(now, *rate)) *rate = now;
  };
  take(device.bf16.flops_per_second, &rates.bf16_flops_per_second);
  take(device.fp8.flops_per_second, &rates.fp8_flops_per_second);
  take(device.memory_bandwidth.bytes_per_second, &rates.bytes_per_second);
  if (!own && profile.derived_multiprocessors > 0) {
    rates.multiprocessors = profile.derived_multiprocessors;
  }
  return rates;
}

// Returns the multiprocessor of the cluster's device. What changes the rates of
// the profile's own device leaves it as it is.
Multiprocessor ProcessorFor(const ClusterSpec& cluster,
                            const DeviceProfile& profile) {
  return MultiprocessorOf(cluster.device.name == profile.device
                              ? profile.rates
                              : RatesFor(cluster, profile));
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

// Cache of prices. Sharded, so that threads seldom wait for each other; a full
// shard is emptied.
class PriceCache {
 public:
  template <typename Make>
  OpPrice Get(const Fingerprint& key, const Make& make) {
    Shard& shard = shards_[key.low % kShards];
    {
      const MutexLock lock(&shard.mutex);
      const auto found = shard.prices.find(key);
      if (found != shard.prices.end()) return found->second;
    }
    const OpPrice price = make();
    const MutexLock lock(&shard.mutex);
    if (shard.prices.size() >= kMaxInShard) shard.prices.clear();
    shard.prices.emplace(key, price);
    return price;
  }

 private:
  static constexpr size_t kShards = 16;
  static constexpr size_t kMaxInShard = 4096;  // About 4 MB in all.
  struct Shard {
    Mutex mutex{};
    absl::flat_hash_map<Fingerprint, OpPrice> prices ABSL_GUARDED_BY(mutex){};
  };
  std::array<Shard, kShards> shards_{};
};

// Prices of a group's collectives by the profile's curves.
class GroupCollectives {
 public:
  GroupCollectives(const ClusterSpec& cluster, const ParallelLayout& parallel,
                   const DeviceProfile& profile)
      : cluster_(cluster),
        parallel_(parallel),
        measured_link_(profile.collectives.node_bytes_per_second),
        node_extra_us_(ExtraUs(cluster.intra_node.latency,
                               profile.collectives.node_latency_us)),
        nic_extra_us_(ExtraUs(cluster.inter_node.latency,
                              profile.collectives.nic_latency_us)),
        has_curves_(!profile.collectives.curves.empty()),
        costs_(WithLinksOf(cluster, profile.collectives)) {}
  GroupCollectives(const GroupCollectives& like, const ParallelLayout& parallel)
      : GroupCollectives(like) {
    parallel_ = parallel;
  }

  const ClusterSpec& cluster() const { return cluster_; }
  bool has_curves() const { return has_curves_; }

  OpPrice Price(const CollectiveOp& op) const {
    if (op.size <= 1 || op.bytes <= 0) return {};
    CollectiveQuery query{
        .op = TypeOf(op.kind), .bytes = op.bytes, .ranks = op.size};
    const bool inside = cluster_.JoinsGroup(GroupSpan(parallel_, op));
    if (op.choices > 0) {
      const SentBytes sent = SentByMember(
          op, inside ? op.size : GroupInNode(cluster_, parallel_, op));
      if (!inside) {
        LinkSpec far = cluster_.inter_node;
        far.bandwidth.bytes_per_second /= cluster_.gpus_per_nic();
        return {AllToAllTime(sent.network, sent.node, op.size, far,
                             cluster_.intra_node),
                CostSource::kRoofline};
      }
      // The curve is that of equal parts.
      query.bytes = sent.node * Real(op.size) / Real(op.size - 1);
    }
    if (!inside) {
      query.span = QuerySpan::kInterNode;
      query.ranks_per_node = GroupInNode(cluster_, parallel_, op);
      // No measurement says how rings share cards.
      if (cluster_.gpus_per_nic() > 1 &&
          (op.group == GroupKind::kData ||
           op.group == GroupKind::kExpertData) &&
          (op.kind == Collective::kAllGather ||
           op.kind == Collective::kReduceScatter)) {
        return {
            RingCollectiveTime(op.bytes, op.size,
                               RingLinkBetweenNodes(cluster_, parallel_, op)),
            CostSource::kRoofline};
      }
    }
    const CollectiveTime time = costs_.Time(query);
    double seconds = time.seconds;
    CollectiveSource source = time.source;
    const double link = cluster_.intra_node.bandwidth.bytes_per_second;
    if (query.span == QuerySpan::kNode && source != CollectiveSource::kModel &&
        measured_link_ > 0 && link != measured_link_) {
      const int64_t ranks = query.op == OpType::kSendRecv ? 2 : op.size;
      const RingGroup group{ranks, ranks};
      seconds *= RingModelSeconds(query.op, op.bytes, group, {link, link}) /
                 RingModelSeconds(query.op, op.bytes, group,
                                  {measured_link_, measured_link_});
      source = CollectiveSource::kInterpolated;
    }
    const double change =
        costs_.LatencyChange(query, node_extra_us_, nic_extra_us_);
    if (change != 0) {
      seconds = std::max(seconds + change, 0.0);
      if (source == CollectiveSource::kMeasured) {
        source = CollectiveSource::kInterpolated;
      }
    }
    if (op.kind == Collective::kRing) {
      seconds *= static_cast<double>(op.size - 1);
    }
    return {ToDuration(seconds), source == CollectiveSource::kMeasured
                                     ? CostSource::kMeasured
                                 : source == CollectiveSource::kInterpolated
                                     ? CostSource::kInterpolated
                                     : CostSource::kRoofline};
  }

 private:
  static double ExtraUs(Duration latency, double measured_us) {
    if (measured_us <= 0) return 0;
    const double extra = ToMicroseconds(latency) - measured_us;
    // Durations are whole nanoseconds.
    return std::abs(extra) < 1e-3 ? 0 : extra;
  }
  static CollectiveProfile WithLinksOf(const ClusterSpec& cluster,
                                       CollectiveProfile profile) {
    if (profile.node_bytes_per_second <= 0) {
      profile.node_bytes_per_second =
          cluster.intra_node.bandwidth.bytes_per_second;
    }
    profile.nic_bytes_per_second =
        cluster.inter_node.bandwidth.bytes_per_second / cluster.gpus_per_nic();
    profile.gpus_per_node = cluster.gpus_per_node;
    return profile;
  }

  static OpType TypeOf(Collective kind) {
    switch (kind) {
      case Collective::kAllGather:
        return OpType::kAllGather;
      case Collective::kReduceScatter:
        return OpType::kReduceScatter;
      case Collective::kAllToAll:
        return OpType::kAllToAll;
      case Collective::kRing:
        return OpType::kSendRecv;
    }
    return OpType::kAllGather;
  }

  ClusterSpec cluster_;
  ParallelLayout parallel_;
  double measured_link_;
  double node_extra_us_;  // Latencies of the cluster less the profile's.
  double nic_extra_us_;
  bool has_curves_;
  CollectiveCosts costs_;
};

}  // namespace

// The part of the model that does not depend on the layout.
struct ProfileCost::Alone {
  Alone(const ClusterSpec& cluster, const DeviceProfile& profile,
        Duration a_least)
      : least(a_least),
        roofline(cluster, {}),
        gemm(profile, RatesFor(cluster, profile), IsOwn(cluster, profile)),
        attention(profile, RatesFor(cluster, profile),
                  ProcessorFor(cluster, profile), IsOwn(cluster, profile)),
        stream(profile, RatesFor(cluster, profile), IsOwn(cluster, profile)),
        compute_slowdown(profile.collectives.compute_slowdown),
        communication_slowdown(profile.collectives.communication_slowdown) {}

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
  double compute_slowdown;
  double communication_slowdown;
  mutable PriceCache cache{};
};

struct ProfileCost::State {
  std::shared_ptr<const Alone> alone{};
  RooflineCost roofline;  // For collectives.
  GroupCollectives collectives;
};

ProfileCost::ProfileCost(const ClusterSpec& cluster,
                         const ParallelLayout& parallel,
                         const DeviceProfile& profile, Duration least)
    : state_(std::make_unique<const State>(
          State{std::make_shared<const Alone>(cluster, profile, least),
                RooflineCost(cluster, parallel),
                GroupCollectives(cluster, parallel, profile)})) {}

ProfileCost::ProfileCost(std::unique_ptr<const State> state)
    : state_(std::move(state)) {}

std::unique_ptr<const ProfileCost> ProfileCost::ForLayout(
    const ParallelLayout& parallel) const {
  return std::unique_ptr<const ProfileCost>(
      new ProfileCost(std::make_unique<const State>(State{
          state_->alone, RooflineCost(state_->collectives.cluster(), parallel),
          GroupCollectives(state_->collectives, parallel)})));
}

ProfileCost::~ProfileCost() = default;

Duration ProfileCost::Overlap(Duration compute, Duration communication) const {
  const Alone& state = *state_->alone;
  const Duration longer = std::max(compute, communication);
  if ((state.compute_slowdown == 1 && state.communication_slowdown == 1) ||
      compute <= kZero || communication <= kZero) {
    return longer;
  }
  return std::max(longer,
                  ToDuration(OverlappedSeconds(
                      ToSeconds(compute), ToSeconds(communication),
                      state.compute_slowdown, state.communication_slowdown)));
}

Duration ProfileCost::RoomDuring(Duration communication) const {
  const Alone& state = *state_->alone;
  if (state.communication_slowdown > 1) return kZero;
  return Nanoseconds(static_cast<int64_t>(
      Real(communication.count()) / std::max(1.0, state.compute_slowdown)));
}

OpPrice ProfileCost::Price(const Op& op) const {
  const State& state = *state_;
  const Alone& alone = *state.alone;
  return std::visit(
      Overloaded{
          [&](const GemmOp& gemm) -> OpPrice {
            if (gemm.flops() <= 0) return {};
            return alone.cache.Get(KeyOf(gemm), [&] {
              return alone.Fallback(gemm, alone.gemm.Price(gemm));
            });
          },
          [&](const AttentionOp& attention) -> OpPrice {
            if (attention.flops <= 0) return {};
            return alone.cache.Get(KeyOf(attention), [&] {
              return alone.Fallback(attention,
                                    alone.attention.Price(attention));
            });
          },
          [&](const MemoryOp& memory) -> OpPrice {
            if (memory.bytes <= 0) return {};
            return alone.Fallback(memory, alone.stream.Price(memory));
          },
          [&](const CollectiveOp& collective) -> OpPrice {
            if (state.collectives.has_curves()) {
              return state.collectives.Price(collective);
            }
            return {state.roofline.Cost(collective), CostSource::kRoofline};
          },
          [&](const FixedOp& other) -> OpPrice {
            return {state.roofline.Cost(other), CostSource::kRoofline};
          },
      },
      op);
}

namespace {

// Prices for a cluster with node groups: a model for the device of each group.
class GroupedCosts : public OpCostModel {
 public:
  using Model = std::unique_ptr<const OpCostModel>;
  GroupedCosts(Model own, std::vector<Model> groups)
      : own_(std::move(own)), groups_(std::move(groups)) {}

  Duration Cost(const Op& op) const override { return own_->Cost(op); }
  OpPrice Price(const Op& op) const override { return own_->Price(op); }
  Duration Overlap(Duration compute, Duration communication) const override {
    return own_->Overlap(compute, communication);
  }
  Duration RoomDuring(Duration communication) const override {
    return own_->RoomDuring(communication);
  }
  const OpCostModel& OnGroup(int32_t group) const override {
    return group < 0 ? *own_ : *groups_[static_cast<size_t>(group)];
  }

 private:
  Model own_;
  std::vector<Model> groups_;
};

std::unique_ptr<const OpCostModel> OneDevice(const ClusterSpec& cluster,
                                             const ParallelLayout& parallel,
                                             const DeviceProfile* profile,
                                             Duration least) {
  if (profile == nullptr) {
    return std::make_unique<RooflineCost>(cluster, parallel);
  }
  return std::make_unique<ProfileCost>(cluster, parallel, *profile, least);
}

}  // namespace

std::unique_ptr<const OpCostModel> MakeOpCosts(const ClusterSpec& cluster,
                                               const ParallelLayout& parallel,
                                               const DeviceProfile* profile,
                                               Duration least) {
  auto own = OneDevice(cluster, parallel, profile, least);
  if (cluster.node_groups.empty()) return own;
  std::vector<GroupedCosts::Model> groups;
  for (const NodeGroup& group : cluster.node_groups) {
    ClusterSpec alone = cluster;
    alone.device = group.device;
    const bool same = group.device.name == cluster.device.name;
    groups.push_back(OneDevice(alone, parallel, same ? profile : nullptr,
                               group.device.kernel_overhead));
  }
  return std::make_unique<GroupedCosts>(std::move(own), std::move(groups));
}

std::unique_ptr<const OpCostModel> MakeOpCosts(
    const ClusterSpec& cluster, const ParallelLayout& parallel,
    absl::FunctionRef<const DeviceProfile*(const std::string&)> profile_of) {
  auto own = OneDevice(cluster, parallel, profile_of(cluster.device.name),
                       cluster.device.kernel_overhead);
  if (cluster.node_groups.empty()) return own;
  std::vector<GroupedCosts::Model> groups;
  for (const NodeGroup& group : cluster.node_groups) {
    ClusterSpec alone = cluster;
    alone.device = group.device;
    groups.push_back(OneDevice(alone, parallel, profile_of(group.device.name),
                               group.device.kernel_overhead));
  }
  return std::make_unique<GroupedCosts>(std::move(own), std::move(groups));
}

std::unique_ptr<const OpCostModel> OpCostsForLayout(
    const OpCostModel& like, const ParallelLayout& parallel) {
  const auto* const profiled = dynamic_cast<const ProfileCost*>(&like);
  return profiled == nullptr ? nullptr : profiled->ForLayout(parallel);
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

std::string RateChange(const DeviceSpec& device, const DeviceProfile& profile) {
  if (device.name == profile.device && !profile.derived_from.empty()) return "";
  const struct {
    const char* name;
    double now;
    double measured;
  } rates[] = {{"bf16 FLOP/s", device.bf16.flops_per_second,
                profile.rates.bf16_flops_per_second},
               {"fp8 FLOP/s", device.fp8.flops_per_second,
                profile.rates.fp8_flops_per_second},
               {"memory bandwidth", device.memory_bandwidth.bytes_per_second,
                profile.rates.bytes_per_second}};
  std::string text;
  for (const auto& rate : rates) {
    if (SameRate(rate.now, rate.measured)) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", rate.name, " ");
    if (rate.measured > 0) {
      absl::StrAppend(&text, "x ", rate.now / rate.measured);
    } else {
      absl::StrAppend(&text, rate.now);
    }
  }
  return text;
}

}  // namespace pipeloom::emulator
