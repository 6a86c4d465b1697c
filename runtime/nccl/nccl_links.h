// DeviceLinks over NCCL: each link is a communicator of two ranks, with one
// stream and one event. Bytes in host memory pass through a pinned and a device
// buffer of the link, which grow to the largest tensor; bytes in device memory
// are sent directly.
//
// Communicators do not block (ncclConfig_t), so nothing here waits for a peer;
// every call checks for asynchronous errors. Abort is ncclCommAbort, which ends
// kernels that wait for a peer.
#ifndef PIPELOOM_RUNTIME_NCCL_NCCL_LINKS_H_
#define PIPELOOM_RUNTIME_NCCL_NCCL_LINKS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/nccl/device_links.h"

namespace pipeloom::runtime {

// The functions of NcclModule.
absl::StatusOr<int32_t> CountCudaDevices();
absl::StatusOr<std::unique_ptr<DeviceLinks>> MakeNcclLinks(int32_t device);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_NCCL_NCCL_LINKS_H_
