#include "runtime/buffer_table.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::runtime {
namespace {

absl::Status NoBuffer(EdgeId edge) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "edge %d has no buffer: it was never received or is freed already",
      edge.value()));
}

}  // namespace

absl::StatusOr<absl::Span<std::byte>> BufferTable::Take(EdgeId edge,
                                                        Bytes payload) {
  if (buffers_.contains(edge)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("edge %d has a buffer already", edge.value()));
  }
  PIPELOOM_RETURN_IF_ERROR(account_->Take(MemoryItem::kReceived, payload));
  Buffer buffer{.payload = payload};
  buffer.resident =
      static_cast<size_t>(ResidentBytes(payload, allocate_, whole_).count());
  if (buffer.resident > 0) {
    buffer.bytes = std::make_unique<std::byte[]>(buffer.resident);
  }
  const absl::Span<std::byte> bytes(buffer.bytes.get(), buffer.resident);
  buffers_.emplace(edge, std::move(buffer));
  return bytes;
}

absl::Status BufferTable::Free(EdgeId edge) {
  const auto found = buffers_.find(edge);
  if (found == buffers_.end()) return NoBuffer(edge);
  const Bytes payload = found->second.payload;
  buffers_.erase(found);
  return account_->Release(MemoryItem::kReceived, payload);
}

absl::StatusOr<absl::Span<const std::byte>> BufferTable::Find(
    EdgeId edge) const {
  const auto found = buffers_.find(edge);
  if (found == buffers_.end()) return NoBuffer(edge);
  return absl::Span<const std::byte>(found->second.bytes.get(),
                                     found->second.resident);
}

}  // namespace pipeloom::runtime
