// Tensors that autograd saves in a layer's forward, moved to host memory until
// the backward.
#ifndef PIPELOOM_RUNTIME_TORCH_HOST_STORE_H_
#define PIPELOOM_RUNTIME_TORCH_HOST_STORE_H_

#include <ATen/ATen.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace pipeloom::runtime {

class HostStore {
 public:
  HostStore() = default;
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  // Of a tensor like this nothing is moved: it is there anyway.
  void LeaveOut(const at::Tensor& parameter);

  // While it lives, what autograd saves on this thread belongs to `store`,
  // unless results are being made again. Null: nothing changes. REQUIRES:
  // UseAgainEngine() was called, and the store outlives the forward.
  class Scope {
   public:
    explicit Scope(HostStore* store);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    HostStore* const before_;
  };

  // What has been saved goes to host memory, and comes back.
  void Leave();
  void Return(at::Device device);

  // Null: no scope. For the engine (made_again.h).
  static std::unique_ptr<torch::autograd::SavedVariableHooks> Hooks();
  // Whether this thread is making a host copy: for those who count bytes.
  static bool copying();

  struct Held {
    at::Tensor whole{};  // All elements of a storage, in a row.
    bool on_host = false;
  };

 private:
  friend class HostHooks;
  std::shared_ptr<Held> Hold(const at::Tensor& tensor);

  absl::flat_hash_set<const c10::StorageImpl*> left_out_{};
  absl::flat_hash_map<const c10::StorageImpl*, std::shared_ptr<Held>> saved_{};
  // On the host; the graph has them too and keeps those that are back.
  std::vector<std::shared_ptr<Held>> away_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_HOST_STORE_H_
