// What LinkTransport needs of a communication library: one-way links between
// two ranks that carry one tensor at a time. Behind it is NCCL, in a shared
// module that is loaded on demand (kNcclEntryPoint), so that a program starts
// without a GPU, its driver or NCCL; in tests it is a copy between threads.
//
// Nothing blocks, but Open for what a library needs to begin. An error ends
// the use of all links. One thread.
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

class DeviceLinks {
 public:
  // One of the two spans is used, by the link's direction.
  struct Transfer {
    int32_t link = 0;
    absl::Span<const std::byte> out{};
    absl::Span<std::byte> into{};
  };

  virtual ~DeviceLinks() = default;

  // A name for a new link; both ends open it by that name.
  virtual absl::StatusOr<std::string> NewName() = 0;
  // Begins to connect. The link's number here.
  virtual absl::StatusOr<int32_t> Open(const std::string& name, bool sends) = 0;
  // Whether it is connected.
  virtual absl::StatusOr<bool> Ready(int32_t link) = 0;
  // Starts all of them together. REQUIRES: their links are ready and idle, no
  // two are of one link, none is empty, and the other ends start theirs with
  // as many bytes. The bytes belong to the links until Done or Abort.
  virtual absl::Status Start(absl::Span<const Transfer> transfers) = 0;
  // Whether the link's transfer is done; the link is idle then.
  virtual absl::StatusOr<bool> Done(int32_t link) = 0;
  // Breaks off everything, whatever the other ends do. No call after it.
  virtual void Abort() = 0;
};

// The shared module's only entry point is a function of this type.
struct NcclModule {
  // FailedPrecondition: there is none, or no driver.
  absl::StatusOr<int32_t> (*count_devices)() = nullptr;
  absl::StatusOr<std::unique_ptr<DeviceLinks>> (*make_links)(int32_t device) =
      nullptr;
};
using NcclEntryPoint = const NcclModule* (*)();
inline constexpr char kNcclEntryPoint[] = "PipeloomNcclModule";

// The device of a rank: the `host_rank`-th of `host_size` ranks on its host.
// FailedPrecondition: NCCL takes one rank a device and there are fewer; unless
// `share`, which NCCL must have been told, too.
absl::StatusOr<int32_t> DeviceOfRank(int32_t host_rank, int32_t host_size,
                                     int32_t devices, bool share);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_NCCL_DEVICE_LINKS_H_
