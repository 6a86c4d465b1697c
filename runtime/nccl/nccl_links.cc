#include "runtime/nccl/nccl_links.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::runtime {
namespace {

// How long the other end is given to agree to an orderly end.
constexpr auto kLongestEnd = std::chrono::seconds(2);

absl::Status CheckCuda(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrFormat("CUDA: %s: %s", what, cudaGetErrorString(code)));
}

absl::Status CheckNccl(ncclResult_t code, ncclComm_t comm, const char* what) {
  if (code == ncclSuccess || code == ncclInProgress) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat("NCCL: %s: %s (%s)", what,
                                                ncclGetErrorString(code),
                                                ncclGetLastError(comm)));
}

bool IsOnDevice(const void* data) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    cudaGetLastError();  // Not an error: plain host memory.
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice ||
         attributes.type == cudaMemoryTypeManaged;
}

class NcclLinks final : public DeviceLinks {
 public:
  explicit NcclLinks(int32_t device) : device_(device) {}

  ~NcclLinks() override {
    cudaSetDevice(device_);
    for (Link& link : links_) {
      if (link.comm != nullptr) End(link.comm);
    }
    for (Link& link : links_) {
      cudaFreeHost(link.pinned);
      cudaFree(link.on_device);
      if (link.event != nullptr) cudaEventDestroy(link.event);
      if (link.stream != nullptr) cudaStreamDestroy(link.stream);
    }
  }

  absl::StatusOr<std::string> NewName() override {
    ncclUniqueId id{};
    PIPELOOM_RETURN_IF_ERROR(
        CheckNccl(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId"));
    return std::string(id.internal, sizeof id.internal);
  }

  absl::StatusOr<int32_t> Open(const std::string& name, bool sends) override {
    ncclUniqueId id{};
    if (name.size() != sizeof id.internal) {
      return absl::InternalError(
          absl::StrFormat("a unique id of %d B; NCCL's have %d B", name.size(),
                          sizeof id.internal));
    }
    std::memcpy(id.internal, name.data(), name.size());
    PIPELOOM_RETURN_IF_ERROR(
        CheckCuda(cudaSetDevice(device_), "cudaSetDevice"));
    Link& link = links_.emplace_back();
    link.sends = sends;
    PIPELOOM_RETURN_IF_ERROR(CheckCuda(
        cudaStreamCreateWithFlags(&link.stream, cudaStreamNonBlocking),
        "a stream"));
    PIPELOOM_RETURN_IF_ERROR(
        CheckCuda(cudaEventCreateWithFlags(&link.event, cudaEventDisableTiming),
                  "an event"));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    PIPELOOM_RETURN_IF_ERROR(CheckNccl(
        ncclCommInitRankConfig(&link.comm, 2, id, sends ? 0 : 1, &config),
        nullptr, "ncclCommInitRankConfig"));
    return static_cast<int32_t>(links_.size()) - 1;
  }

  absl::StatusOr<bool> Ready(int32_t link) override {
    return IsReady(links_[static_cast<size_t>(link)]);
  }

  absl::Status Start(absl::Span<const Transfer> transfers) override {
    for (const Transfer& t : transfers) {
      Link& link = links_[static_cast<size_t>(t.link)];
      link.size = link.sends ? t.out.size() : t.into.size();
      link.into = {};
      link.launched = false;
      void* const bytes =
          link.sends ? const_cast<std::byte*>(t.out.data()) : t.into.data();
      link.buffer = bytes;
      if (IsOnDevice(bytes)) continue;
      PIPELOOM_RETURN_IF_ERROR(MakeRoom(link));
      link.buffer = link.on_device;
      if (!link.sends) {
        link.into = t.into;
        continue;
      }
      std::memcpy(link.pinned, bytes, link.size);
      PIPELOOM_RETURN_IF_ERROR(
          CheckCuda(cudaMemcpyAsync(link.on_device, link.pinned, link.size,
                                    cudaMemcpyHostToDevice, link.stream),
                    "a copy to the device"));
    }
    PIPELOOM_RETURN_IF_ERROR(
        CheckNccl(ncclGroupStart(), nullptr, "ncclGroupStart"));
    absl::Status status;
    for (const Transfer& t : transfers) {
      Link& link = links_[static_cast<size_t>(t.link)];
      const ncclResult_t code =
          link.sends ? ncclSend(link.buffer, link.size, ncclUint8, 1, link.comm,
                                link.stream)
                     : ncclRecv(link.buffer, link.size, ncclUint8, 0, link.comm,
                                link.stream);
      status.Update(
          CheckNccl(code, link.comm, link.sends ? "ncclSend" : "ncclRecv"));
    }
    status.Update(CheckNccl(ncclGroupEnd(), nullptr, "ncclGroupEnd"));
    return status;
  }

  absl::StatusOr<bool> Done(int32_t index) override {
    Link& link = links_[static_cast<size_t>(index)];
    PIPELOOM_ASSIGN_OR_RETURN(const bool ready, IsReady(link));
    if (!ready) return false;
    if (!link.launched) {
      // NCCL has put its kernel on the stream only when the link is ready.
      if (!link.into.empty()) {
        PIPELOOM_RETURN_IF_ERROR(
            CheckCuda(cudaMemcpyAsync(link.pinned, link.on_device, link.size,
                                      cudaMemcpyDeviceToHost, link.stream),
                      "a copy from the device"));
      }
      PIPELOOM_RETURN_IF_ERROR(
          CheckCuda(cudaEventRecord(link.event, link.stream), "an event"));
      link.launched = true;
    }
    const cudaError_t code = cudaEventQuery(link.event);
    if (code == cudaErrorNotReady) return false;
    PIPELOOM_RETURN_IF_ERROR(CheckCuda(code, "a transfer"));
    if (!link.into.empty()) {
      std::memcpy(link.into.data(), link.pinned, link.size);
    }
    return true;
  }

  void Abort() override {
    for (Link& link : links_) {
      if (link.comm != nullptr) ncclCommAbort(link.comm);
      link.comm = nullptr;
    }
  }

 private:
  struct Link {
    bool sends = false;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    void* pinned = nullptr;
    void* on_device = nullptr;
    size_t room = 0;  // Bytes of each of the two buffers.
    // The transfer under way.
    void* buffer = nullptr;
    size_t size = 0;
    absl::Span<std::byte> into{};  // Empty unless received by the buffers.
    bool launched = false;         // Whether its event is recorded.
  };

  static absl::StatusOr<bool> IsReady(const Link& link) {
    ncclResult_t state = ncclSuccess;
    PIPELOOM_RETURN_IF_ERROR(CheckNccl(ncclCommGetAsyncError(link.comm, &state),
                                       link.comm, "ncclCommGetAsyncError"));
    PIPELOOM_RETURN_IF_ERROR(CheckNccl(state, link.comm, "a communicator"));
    return state == ncclSuccess;
  }

  // REQUIRES: the link is idle.
  static absl::Status MakeRoom(Link& link) {
    if (link.room >= link.size) return absl::OkStatus();
    cudaFreeHost(link.pinned);
    cudaFree(link.on_device);
    link.pinned = link.on_device = nullptr;
    link.room = 0;
    PIPELOOM_RETURN_IF_ERROR(
        CheckCuda(cudaHostAlloc(&link.pinned, link.size, 0), "pinned memory"));
    PIPELOOM_RETURN_IF_ERROR(
        CheckCuda(cudaMalloc(&link.on_device, link.size), "device memory"));
    link.room = link.size;
    return absl::OkStatus();
  }

  static void End(ncclComm_t comm) {
    ncclResult_t state = ncclCommFinalize(comm);
    const auto until = std::chrono::steady_clock::now() + kLongestEnd;
    while (state == ncclInProgress &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) break;
    }
    if (state == ncclSuccess) {
      ncclCommDestroy(comm);
    } else {
      ncclCommAbort(comm);
    }
  }

  int32_t device_;
  std::vector<Link> links_{};
};

}  // namespace

absl::StatusOr<int32_t> CountCudaDevices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  return absl::FailedPreconditionError(absl::StrFormat(
      "the nccl transport needs a CUDA device; there is none here (CUDA says: "
      "%s): use --transport mpi",
      code == cudaSuccess ? "no devices" : cudaGetErrorString(code)));
}

absl::StatusOr<std::unique_ptr<DeviceLinks>> MakeNcclLinks(int32_t device) {
  PIPELOOM_RETURN_IF_ERROR(CheckCuda(cudaSetDevice(device), "cudaSetDevice"));
  return std::make_unique<NcclLinks>(device);
}

}  // namespace pipeloom::runtime
