// The bytes of torch's tensors on the CPU, counted by the allocator.
#ifndef PIPELOOM_TESTS_RUNTIME_TORCH_COUNTING_ALLOCATOR_H_
#define PIPELOOM_TESTS_RUNTIME_TORCH_COUNTING_ALLOCATOR_H_

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "runtime/torch/fused_ops.h"
#include "runtime/torch/host_store.h"

namespace pipeloom::runtime {

// The bytes that the threads which count into it have allocated and not freed.
// Copies that stand for host memory do not count, and temporary tensors of a
// fused operator count only if they are still there afterwards.
struct ByteCount {
  std::atomic<int64_t> live = 0;
  int64_t other = 0;  // Other bytes of the same thread's.
  int64_t most = 0;   // The largest sum of both.
  void Look() { most = std::max(most, live.load() + other); }
};

class CountingAllocator final : public c10::Allocator {
 public:
  // From here on in this process; calls after the first do nothing.
  static void Use() {
    static CountingAllocator allocator;
    c10::SetCPUAllocator(&allocator, /*priority=*/100);
  }
  // Where this thread's allocations count; null: nowhere.
  static void CountInto(ByteCount* count) { current_ = count; }

  // The context is the data: kernels that allocate raw memory ask for that.
  c10::DataPtr allocate(size_t bytes) const override {
    auto* block = static_cast<char*>(
        std::aligned_alloc(kHeader, (bytes / kHeader + 2) * kHeader));
    const Header header{.bytes = static_cast<int64_t>(bytes),
                        .count = HostStore::copying() ? nullptr : current_};
    std::memcpy(block, &header, sizeof header);
    if (header.count != nullptr) {
      header.count->live += header.bytes;
      if (!KernelScope::inside()) header.count->Look();
    }
    return {block + kHeader, block + kHeader, &Free, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  static void Free(void* data) {
    if (data == nullptr) return;
    char* const block = static_cast<char*>(data) - kHeader;
    Header header;
    std::memcpy(&header, block, sizeof header);
    if (header.count != nullptr) {
      // The tensors that an operator has left were not counted yet.
      if (!KernelScope::inside() && header.count == current_) {
        header.count->Look();
      }
      header.count->live -= header.bytes;
    }
    std::free(block);
  }

 private:
  static constexpr size_t kHeader = 64;
  struct Header {
    int64_t bytes = 0;
    ByteCount* count = nullptr;
  };
  static inline thread_local ByteCount* current_ = nullptr;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_TESTS_RUNTIME_TORCH_COUNTING_ALLOCATOR_H_
