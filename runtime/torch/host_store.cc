#include "runtime/torch/host_store.h"

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <utility>

#include "base/check.h"

namespace pipeloom::runtime {
namespace {

using at::Tensor;

thread_local HostStore* current_store = nullptr;
thread_local bool copying_now = false;

}  // namespace

// The hooks of one saved tensor.
class HostHooks : public torch::autograd::SavedVariableHooks {
 public:
  explicit HostHooks(HostStore* store) : store_(store) {}
  void call_pack_hook(const Tensor& tensor) override {
    held_ = store_->Hold(tensor);
    store_ = nullptr;
    if (held_ == nullptr) {
      kept_ = tensor.detach();
      return;
    }
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
  }
  Tensor call_unpack_hook() override {
    if (held_ == nullptr) return kept_;
    PIPELOOM_CHECK(!held_->on_host);
    return held_->whole.as_strided(sizes_, strides_, offset_);
  }

 private:
  HostStore* store_;
  std::shared_ptr<HostStore::Held> held_{};
  Tensor kept_{};
  std::vector<int64_t> sizes_{};
  std::vector<int64_t> strides_{};
  int64_t offset_ = 0;
};

void HostStore::LeaveOut(const Tensor& parameter) {
  left_out_.insert(parameter.storage().unsafeGetStorageImpl());
}

HostStore::Scope::Scope(HostStore* store) : before_(current_store) {
  if (store != nullptr) current_store = store;
}

HostStore::Scope::~Scope() { current_store = before_; }

std::shared_ptr<HostStore::Held> HostStore::Hold(const Tensor& tensor) {
  const c10::StorageImpl* const storage =
      tensor.storage().unsafeGetStorageImpl();
  if (left_out_.contains(storage)) return nullptr;
  std::shared_ptr<Held>& held = saved_[storage];
  if (held == nullptr) {
    held = std::make_shared<Held>();
    const auto elements = static_cast<int64_t>(tensor.storage().nbytes() /
                                               tensor.dtype().itemsize());
    held->whole = tensor.detach().as_strided({elements}, {1}, 0);
  }
  return held;
}

void HostStore::Leave() {
  for (auto& [storage, held] : saved_) {
    copying_now = true;
    held->whole = held->whole.to(at::kCPU, /*non_blocking=*/false,
                                 /*copy=*/true);
    copying_now = false;
    held->on_host = true;
    away_.push_back(std::move(held));
  }
  saved_.clear();
}

void HostStore::Return(at::Device device) {
  for (const std::shared_ptr<Held>& held : away_) {
    held->whole = held->whole.to(device, /*non_blocking=*/false,
                                 /*copy=*/true);
    held->on_host = false;
  }
  away_.clear();
}

std::unique_ptr<torch::autograd::SavedVariableHooks> HostStore::Hooks() {
  if (current_store == nullptr) return nullptr;
  return std::make_unique<HostHooks>(current_store);
}

bool HostStore::copying() { return copying_now; }

}  // namespace pipeloom::runtime
