// A stable 128-bit structural hash: the same on every platform and in every
// process (absl::Hash is salted). For cache keys and plan checksums; not
// cryptographic.
#ifndef PIPELOOM_BASE_FINGERPRINT_H_
#define PIPELOOM_BASE_FINGERPRINT_H_

#include <bit>
#include <compare>
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"

namespace pipeloom {

struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  friend constexpr auto operator<=>(const Fingerprint&,
                                    const Fingerprint&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Fingerprint& f) {
    return H::combine(std::move(state), f.high, f.low);
  }
};

// Feed values in a fixed order; the order and count of values matter.
class FingerprintBuilder {
 public:
  template <std::integral T>
  FingerprintBuilder& Add(T value) {
    Mix(static_cast<uint64_t>(value));
    return *this;
  }
  template <typename E>
  requires std::is_enum_v<E> FingerprintBuilder& Add(E value) {
    Mix(static_cast<uint64_t>(value));
    return *this;
  }
  FingerprintBuilder& Add(double value) {
    Mix(std::bit_cast<uint64_t>(value == 0 ? 0.0 : value));
    return *this;
  }
  FingerprintBuilder& Add(absl::string_view text) {
    Mix(text.size());
    for (const char c : text) Mix(static_cast<unsigned char>(c));
    return *this;
  }
  FingerprintBuilder& Add(const Fingerprint& f) {
    Mix(f.high);
    Mix(f.low);
    return *this;
  }

  Fingerprint Build() const { return {Finish(a_), Finish(b_ ^ a_)}; }

 private:
  static uint64_t Finish(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  void Mix(uint64_t value) {
    a_ = (std::rotl(a_, 29) ^ value) * 0x9e3779b97f4a7c15u;
    b_ = (std::rotl(b_, 41) + (value ^ 0xc2b2ae3d27d4eb4fu)) *
         0xff51afd7ed558ccdu;
    b_ ^= a_ >> 32;
  }

  uint64_t a_ = 0x243f6a8885a308d3u;
  uint64_t b_ = 0x13198a2e03707344u;
};

}  // namespace pipeloom

#endif  // PIPELOOM_BASE_FINGERPRINT_H_
