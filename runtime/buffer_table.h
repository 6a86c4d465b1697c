// The buffers of one rank's received tensors, indexed by edge.
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

// The most bytes that are allocated for one tensor, unless it is wanted whole.
// Memory accounts always count the full size. A run that only keeps time
// allocates nothing, and one that allocates keeps at most kMaxResident of each
// tensor, so that plans for GPUs run on any machine.
inline constexpr Bytes kMaxResident{256 << 10};
// Returns how many bytes of a tensor are really allocated. `whole`: all of
// them, for devices that compute with the tensors.
inline Bytes ResidentBytes(Bytes payload, bool allocate, bool whole = false) {
  if (whole) return payload;
  return allocate ? std::min(payload, kMaxResident) : Bytes(0);
}

// Owns the buffers. A buffer's memory does not move until it is freed. Used by
// the rank's thread only.
class BufferTable {
 public:
  // REQUIRES: `account` outlives the table.
  BufferTable(MemoryAccount* account, bool allocate, bool whole = false)
      : account_(account), allocate_(allocate), whole_(whole) {}

  // Takes a buffer for the edge's tensor and returns its resident bytes,
  // zeroed. FailedPrecondition: the edge already has a buffer.
  // ResourceExhausted: the rank's memory limit would be passed.
  absl::StatusOr<absl::Span<std::byte>> Take(EdgeId edge, Bytes payload);
  // Frees the edge's buffer. FailedPrecondition: there is none, or it is freed
  // already.
  absl::Status Free(EdgeId edge);
  // Returns the resident bytes of the edge's buffer. FailedPrecondition: as for
  // Free.
  absl::StatusOr<absl::Span<const std::byte>> Find(EdgeId edge) const;

  // Returns the number of buffers that are not freed.
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
