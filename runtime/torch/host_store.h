// A store of tensors that autograd saves in a layer's forward, which are moved
// to host memory until the backward.
#ifndef PIPELOOM_RUNTIME_TORCH_HOST_STORE_H_
#define PIPELOOM_RUNTIME_TORCH_HOST_STORE_H_

#include <ATen/ATen.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace pipeloom::runtime {

// See the top of the file.
class HostStore {
 public:
  HostStore() = default;
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  // Excludes tensors that share this one's storage, such as a parameter's, from
  // being moved: they stay on the device anyway.
  void LeaveOut(const at::Tensor& parameter);

  // A scope in which tensors that autograd saves on this thread belong to
  // `store`, unless results are being made again. A null `store` changes
  // nothing. REQUIRES: UseAgainEngine() was called, and the store outlives the
  // forward.
  class Scope {
   public:
    explicit Scope(HostStore* store);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    HostStore* const before_;
  };

  // Moves all saved tensors to host memory (Leave) or back to the device
  // (Return).
  void Leave();
  void Return(at::Device device);

  // Returns hooks for the current scope of this thread, or null if there is
  // none. Called by the engine (made_again.h).
  static std::unique_ptr<torch::autograd::SavedVariableHooks> Hooks();
  // Returns whether this thread is making a host copy, for code that counts
  // bytes.
  static bool copying();

  struct Held {
    at::Tensor whole{};  // All elements of a storage, as one dimension.
    bool on_host = false;
  };

 private:
  friend class HostHooks;
  std::shared_ptr<Held> Hold(const at::Tensor& tensor);

  absl::flat_hash_set<const c10::StorageImpl*> left_out_{};
  absl::flat_hash_map<const c10::StorageImpl*, std::shared_ptr<Held>> saved_{};
  // Tensors on the host. The graph refers to them, too, and keeps those that
  // have come back.
  std::vector<std::shared_ptr<Held>> away_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_HOST_STORE_H_
