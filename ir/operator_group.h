// Groups of operators of a layer. The results of a group can be dropped after
// the forward and recomputed in the backward, each from the results before it:
//
//   layer input -> norms -> projections -> core attention -> ...
//   block input -> norms -> projections -> activations -> ...
//
// emulator/stage/layer_memory.h says which tensors these are and what they are
// made from.
#ifndef PIPELOOM_IR_OPERATOR_GROUP_H_
#define PIPELOOM_IR_OPERATOR_GROUP_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace pipeloom {

// The operator groups of a layer.
enum class OperatorGroup : uint8_t {
  kCoreAttention,   // Fused attention, between the projections.
  kNorms,           // Norms and the modulation that follows them.
  kActivations,     // Between the two products of a feed-forward part.
  kMoeActivations,  // The same for experts.
  kProjections,     // Products before attention and before activations.
};
inline constexpr int kNumOperatorGroups = 5;
inline constexpr std::array<OperatorGroup, kNumOperatorGroups>
    kAllOperatorGroups = {OperatorGroup::kCoreAttention, OperatorGroup::kNorms,
                          OperatorGroup::kActivations,
                          OperatorGroup::kMoeActivations,
                          OperatorGroup::kProjections};

// Returns the name of a group as in files: "core_attention".
inline constexpr absl::string_view NameOf(OperatorGroup group) {
  constexpr absl::string_view kNames[] = {"core_attention", "norms",
                                          "activations", "moe_activations",
                                          "projections"};
  return kNames[static_cast<size_t>(group)];
}

// A set of operator groups.
class OperatorGroups {
 public:
  constexpr OperatorGroups() = default;
  constexpr OperatorGroups(std::initializer_list<OperatorGroup> groups) {
    for (const OperatorGroup g : groups) bits_ |= BitOf(g);
  }
  // Returns the set of the groups whose bits are set in `bits`. REQUIRES: bits
  // < 2^kNumOperatorGroups.
  static constexpr OperatorGroups FromBits(uint32_t bits) {
    OperatorGroups groups;
    groups.bits_ = static_cast<uint8_t>(bits);
    return groups;
  }
  static constexpr uint32_t kAllBits = (1u << kNumOperatorGroups) - 1;

  constexpr uint32_t bits() const { return bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool Has(OperatorGroup group) const {
    return (bits_ & BitOf(group)) != 0;
  }
  constexpr bool operator==(const OperatorGroups&) const = default;

 private:
  static constexpr uint8_t BitOf(OperatorGroup group) {
    return static_cast<uint8_t>(1u << static_cast<uint32_t>(group));
  }
  uint8_t bits_ = 0;
};

// Returns the names joined by "+", such as "norms+activations"; "" for the
// empty set.
inline std::string ToString(OperatorGroups groups) {
  std::string text;
  for (const OperatorGroup g : kAllOperatorGroups) {
    if (!groups.Has(g)) continue;
    absl::StrAppend(&text, text.empty() ? "" : "+", NameOf(g));
  }
  return text;
}

}  // namespace pipeloom

#endif  // PIPELOOM_IR_OPERATOR_GROUP_H_
