// The buffers of received tensors of one rank: edge -> bytes. Used by the
// rank's thread only; the memory of a buffer stays where it is until freed.
#ifndef PIPELOOM_RUNTIME_BUFFER_TABLE_H_
#define PIPELOOM_RUNTIME_BUFFER_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/ids.h"
#include "runtime/memory_account.h"

namespace pipeloom::runtime {

// How much of a tensor is really there. Accounts always count all of it; a
// run that only keeps time allocates nothing, and one that allocates keeps at
// most kMaxResident of each tensor, so that plans for GPUs run anywhere.
// Real devices ask for all of it (`whole`).
inline constexpr Bytes kMaxResident{256 << 10};
inline Bytes ResidentBytes(Bytes payload, bool allocate, bool whole = false) {
  if (whole) return payload;
  return allocate ? std::min(payload, kMaxResident) : Bytes(0);
}

class BufferTable {
 public:
  // `account` outlives the table.
  BufferTable(MemoryAccount* account, bool allocate, bool whole = false)
      : account_(account), allocate_(allocate), whole_(whole) {}

  // Takes a buffer for the edge's tensor; its resident bytes, zeroed.
  // FailedPrecondition: the edge has one. ResourceExhausted: over the limit.
  absl::StatusOr<absl::Span<std::byte>> Take(EdgeId edge, Bytes payload);
  // FailedPrecondition: there is none, or it is freed already.
  absl::Status Free(EdgeId edge);
  // FailedPrecondition as Free.
  absl::StatusOr<absl::Span<const std::byte>> Find(EdgeId edge) const;

  int32_t size() const { return static_cast<int32_t>(buffers_.size()); }

 private:
  struct Buffer {
    Bytes payload{};
    size_t resident = 0;
    std::unique_ptr<std::byte[]> bytes{};
  };
  MemoryAccount* account_;
  bool allocate_;
  bool whole_;
  absl::flat_hash_map<EdgeId, Buffer> buffers_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_BUFFER_TABLE_H_
