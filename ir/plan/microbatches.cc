#include "ir/plan/microbatches.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/str_format.h"

namespace pipeloom {

WorkShape& WorkShape::operator+=(const WorkShape& other) {
  instances += other.instances;
  tokens += other.tokens;
  output_tokens += other.output_tokens;
  squared_tokens += other.squared_tokens;
  context_tokens += other.context_tokens;
  context_pairs += other.context_pairs;
  sequences += other.sequences;
  longest = std::max(longest, other.longest);
  share_tokens = 0;
  share_squared = 0;
  host_launched = host_launched || other.host_launched;
  return *this;
}

WorkShape WorkShape::Padded() const {
  const double length = static_cast<double>(longest);
  const double padded = sequences * length;
  if (tokens == 0 || padded <= static_cast<double>(tokens)) return *this;
  const double growth = padded / static_cast<double>(tokens);
  WorkShape shape = *this;
  shape.tokens = static_cast<int64_t>(padded);
  shape.squared_tokens = padded * length;
  shape.output_tokens = static_cast<int64_t>(
      std::ceil(static_cast<double>(output_tokens) * growth));
  shape.context_pairs = context_pairs * growth;
  shape.share_tokens = static_cast<int64_t>(
      std::ceil(static_cast<double>(share_tokens) * growth));
  shape.share_squared = static_cast<double>(shape.share_tokens) * length;
  return shape;
}

Fingerprint WorkShape::fingerprint() const {
  FingerprintBuilder builder;
  if (share_tokens > 0) builder.Add(share_tokens).Add(share_squared);
  if (host_launched) builder.Add(host_launched);
  return builder.Add(instances)
      .Add(tokens)
      .Add(output_tokens)
      .Add(squared_tokens)
      .Add(context_tokens)
      .Add(context_pairs)
      .Add(sequences)
      .Add(longest)
      .Build();
}

WorkShape LargestShare(const WorkShape& shape, int32_t copies) {
  WorkShape share = shape;
  share.share_tokens = 0;
  share.share_squared = 0;
  if (copies <= 1 || shape.instances <= 1) return share;
  const auto n = static_cast<double>(shape.instances);
  const bool known = shape.share_tokens > 0 && shape.tokens > 0;
  const double part = known ? static_cast<double>(shape.share_tokens) /
                                  static_cast<double>(shape.tokens)
                            : std::ceil(n / copies) / n;
  const auto of = [&](int64_t value) {
    return static_cast<int64_t>(
        std::ceil(static_cast<double>(value) * part - 1e-9));
  };
  share.instances = of(shape.instances);
  share.tokens =
      known ? shape.share_tokens
            : std::max(of(shape.tokens), std::min(shape.longest, shape.tokens));
  share.output_tokens = of(shape.output_tokens);
  share.squared_tokens =
      known ? shape.share_squared : shape.squared_tokens * part;
  share.context_tokens = of(shape.context_tokens);
  share.context_pairs = shape.context_pairs * part;
  share.sequences = shape.sequences * part;
  return share;
}

WorkShape LargestShare(std::vector<WorkShape> instances, int32_t copies) {
  std::stable_sort(instances.begin(), instances.end(),
                   [](const WorkShape& a, const WorkShape& b) {
                     return a.tokens > b.tokens;
                   });
  std::vector<WorkShape> shares(static_cast<size_t>(std::max(copies, 1)));
  const auto fewer = [](const WorkShape& a, const WorkShape& b) {
    return a.tokens < b.tokens;
  };
  for (const WorkShape& instance : instances) {
    *std::min_element(shares.begin(), shares.end(), fewer) += instance;
  }
  return *std::max_element(shares.begin(), shares.end(), fewer);
}

std::vector<SubMicrobatchId> Microbatches::Of(MicrobatchId microbatch,
                                              ModuleId module) const {
  std::vector<SubMicrobatchId> result;
  for (const SubMicrobatchId id : sub_microbatches.ids()) {
    const SubMicrobatch& sub = sub_microbatches[id];
    if (sub.microbatch == microbatch && sub.module == module) {
      result.push_back(id);
    }
  }
  return result;
}

absl::Status ValidateMicrobatches(const Microbatches& microbatches,
                                  const ModelSpec& model) {
  const auto fail = [](SubMicrobatchId id, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "microbatches: sub-microbatch %d: %s", id.value(), what));
  };
  std::tuple<int32_t, int32_t, int32_t> last{-1, -1, -1};
  for (const SubMicrobatchId id : microbatches.sub_microbatches.ids()) {
    const SubMicrobatch& sub = microbatches.sub_microbatches[id];
    if (sub.microbatch.value() < 0 ||
        sub.microbatch.value() >= microbatches.num_microbatches) {
      return fail(id, absl::StrFormat("microbatch %d is not in [0, %d)",
                                      sub.microbatch.value(),
                                      microbatches.num_microbatches));
    }
    if (!model.modules.Contains(sub.module)) {
      return fail(id,
                  absl::StrFormat("there is no module %d", sub.module.value()));
    }
    const std::tuple<int32_t, int32_t, int32_t> key{
        sub.microbatch.value(), sub.module.value(), sub.index};
    const bool follows = std::get<0>(key) == std::get<0>(last) &&
                         std::get<1>(key) == std::get<1>(last);
    if (key <= last || sub.index != (follows ? std::get<2>(last) + 1 : 0)) {
      return fail(id, absl::StrFormat("index %d is out of order", sub.index));
    }
    last = key;
    const WorkShape& s = sub.shape;
    if (s.instances < 0 || s.tokens < 0 || s.output_tokens < 0 ||
        !(s.squared_tokens >= 0) || s.context_tokens < 0 ||
        !(s.context_pairs >= 0) || s.share_tokens < 0 ||
        !(s.share_squared >= 0)) {
      return fail(id, "its shape has a negative size");
    }
    if (s.empty()) return fail(id, "its shape is empty");
    if (sub.data().tokens > s.tokens || sub.bucket < 0) {
      return fail(id,
                  absl::StrFormat("%d tokens in a bucket of %d are padded to "
                                  "%d, which must not be less",
                                  sub.data().tokens, sub.bucket, s.tokens));
    }
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
