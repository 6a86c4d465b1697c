// The interface of LinkTransport to a communication library: one-way links
// between two ranks that carry one tensor at a time. It is implemented by NCCL,
// in a shared module that is loaded on demand (kNcclEntryPoint), so that a
// program starts without a GPU, its driver or NCCL; in tests, by a copy between
// threads.
//
// No call blocks, except Open while the library initializes. After an error no
// link may be used. Threads: one.
#ifndef PIPELOOM_RUNTIME_NCCL_DEVICE_LINKS_H_
#define PIPELOOM_RUNTIME_NCCL_DEVICE_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace pipeloom::runtime {

// The links of one rank.
class DeviceLinks {
 public:
  // The bytes to send or receive on a link; the link's direction says which of
  // the two spans is used.
  struct Transfer {
    int32_t link = 0;
    absl::Span<const std::byte> out{};
    absl::Span<std::byte> into{};
  };

  virtual ~DeviceLinks() = default;

  // Returns a name for a new link; both ends open the link by this name.
  virtual absl::StatusOr<std::string> NewName() = 0;
  // Begins to connect a link. Returns the number that this rank gives to it.
  virtual absl::StatusOr<int32_t> Open(const std::string& name, bool sends) = 0;
  // Returns whether the link is connected.
  virtual absl::StatusOr<bool> Ready(int32_t link) = 0;
  // Starts all transfers together. The bytes belong to the links until Done or
  // Abort. REQUIRES: the links are ready and idle, no two transfers are on one
  // link, none is empty, and the other ends start theirs with as many bytes.
  virtual absl::Status Start(absl::Span<const Transfer> transfers) = 0;
  // Returns whether the link's transfer is done; then the link is idle.
  virtual absl::StatusOr<bool> Done(int32_t link) = 0;
  // Cancels everything, whatever the other ends do. No call may follow.
  virtual void Abort() = 0;
};

// The functions of the shared module.
struct NcclModule {
  // Returns the number of CUDA devices. FailedPrecondition: there is none, or
  // no driver.
  absl::StatusOr<int32_t> (*count_devices)() = nullptr;
  absl::StatusOr<std::unique_ptr<DeviceLinks>> (*make_links)(int32_t device) =
      nullptr;
};
// The type and name of the shared module's only entry point.
using NcclEntryPoint = const NcclModule* (*)();
inline constexpr char kNcclEntryPoint[] = "PipeloomNcclModule";

// Returns the device of the `host_rank`-th of `host_size` ranks on a host with
// `devices` devices. FailedPrecondition: there is no device, or there are fewer
// devices than ranks, as NCCL takes one rank per device; `share` allows fewer,
// which NCCL must be configured for, too.
absl::StatusOr<int32_t> DeviceOfRank(int32_t host_rank, int32_t host_size,
                                     int32_t devices, bool share);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_NCCL_DEVICE_LINKS_H_
