#include "runtime/torch/made_again.h"

#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "runtime/torch/host_store.h"

namespace pipeloom::runtime {
namespace {

using at::Tensor;
namespace autograd = torch::autograd;

class Region;

// A saved tensor: the tensor itself, or the region that makes it again.
struct Packed {
  Tensor kept{};  // Not part of a graph.
  bool requires_grad = false;
  std::shared_ptr<Region> region{};  // Instead of `kept`.
  // Whether it is an output of the region, or else a tensor that an operator
  // inside it saved; its index among these.
  bool is_output = false;
  size_t index = 0;
  // Shape of a view of an output.
  std::vector<int64_t> sizes{};
  std::vector<int64_t> strides{};
  int64_t offset = 0;

  Tensor Unpack() const;
};

// A call of `make` whose results are thrown away.
class Region {
 public:
  Region(AgainMake make, std::vector<Packed> inputs)
      : make_(std::move(make)), inputs_(std::move(inputs)) {}

  const Tensor& Output(size_t index) {
    MakeAgain();
    return outputs_[index];
  }
  const Tensor& Saved(size_t index) {
    MakeAgain();
    PIPELOOM_CHECK(index < saved_.size());
    return saved_[index];
  }

 private:
  void MakeAgain();

  AgainMake make_;
  std::vector<Packed> inputs_;
  bool made_ = false;
  AgainTensors outputs_{};
  AgainTensors saved_{};
};

Tensor Packed::Unpack() const {
  if (region == nullptr) return kept;
  if (!is_output) return region->Saved(index);
  return region->Output(index).as_strided(sizes, strides, offset);
}

const c10::StorageImpl* StorageOf(const Tensor& t) {
  return t.storage().unsafeGetStorageImpl();
}

// Decide how tensors saved on this thread are kept; if both are null, as they
// are.
thread_local AgainRegistry* current_registry = nullptr;
thread_local AgainTensors* current_collection = nullptr;

}  // namespace

// The regions of a layer while its forward runs, and the storages of their
// results.
class AgainRegistry {
 public:
  explicit AgainRegistry(OperatorGroups groups) : groups_(groups) {}

  bool Has(OperatorGroup group) const { return groups_.Has(group); }

  Packed Pack(const Tensor& t) {
    Packed packed;
    packed.requires_grad = t.requires_grad();
    const auto made = made_.find(StorageOf(t));
    // The weak pointer keeps the address of a freed storage from being reused.
    if (made != made_.end() && !made->second.storage.expired()) {
      packed.region = made->second.region;
      packed.is_output = true;
      packed.index = made->second.output;
      packed.sizes = t.sizes().vec();
      packed.strides = t.strides().vec();
      packed.offset = t.storage_offset();
      return packed;
    }
    if (inside_ != nullptr && !IsInput(t)) {
      packed.region = inside_;
      packed.index = saved_inside_;
      return packed;
    }
    packed.kept = t.detach();
    return packed;
  }
  Packed PackSaved(const Tensor& t) {
    Packed packed = Pack(t);
    ++saved_inside_;
    return packed;
  }

  AgainTensors Run(AgainTensors inputs, const AgainMake& make) {
    PIPELOOM_CHECK(inside_ == nullptr);
    std::vector<Packed> packed;
    for (const Tensor& t : inputs) {
      packed.push_back(t.defined() ? Pack(t) : Packed());
    }
    const auto region = std::make_shared<Region>(make, std::move(packed));
    inside_ = region;
    saved_inside_ = 0;
    inputs_of_inside_ = &inputs;
    AgainTensors outputs = make(inputs);
    inside_ = nullptr;
    inputs_of_inside_ = nullptr;
    for (size_t i = 0; i < outputs.size(); ++i) {
      made_.insert_or_assign(
          StorageOf(outputs[i]),
          Made{outputs[i].storage().getWeakStorageImpl(), region, i});
    }
    return outputs;
  }

 private:
  struct Made {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::shared_ptr<Region> region{};
    size_t output = 0;
  };
  bool IsInput(const Tensor& t) const {
    for (const Tensor& input : *inputs_of_inside_) {
      if (input.defined() && StorageOf(input) == StorageOf(t)) return true;
    }
    return false;
  }

  const OperatorGroups groups_;
  std::unordered_map<const c10::StorageImpl*, Made> made_{};
  std::shared_ptr<Region> inside_{};
  size_t saved_inside_ = 0;
  const AgainTensors* inputs_of_inside_ = nullptr;
};

namespace {

void Region::MakeAgain() {
  if (made_) return;
  made_ = true;
  AgainTensors inputs;
  for (const Packed& packed : inputs_) {
    Tensor t = packed.Unpack();
    if (t.defined()) t = t.detach().requires_grad_(packed.requires_grad);
    inputs.push_back(std::move(t));
  }
  AgainRegistry* const registry = std::exchange(current_registry, nullptr);
  AgainTensors* const collection = std::exchange(current_collection, &saved_);
  {
    const at::AutoGradMode mode(true);
    for (const Tensor& t : make_(inputs)) outputs_.push_back(t.detach());
  }
  current_collection = collection;
  current_registry = registry;
  inputs_.clear();
}

// The hooks of one saved tensor.
class SavedHooks : public autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const Tensor& tensor) override {
    if (current_collection != nullptr) {
      current_collection->push_back(tensor.detach());
      packed_.kept = current_collection->back();
      return;
    }
    packed_ = current_registry->PackSaved(tensor);
  }
  Tensor call_unpack_hook() override { return packed_.Unpack(); }

 private:
  Packed packed_{};
};

class AgainEngine : public autograd::Engine {
 public:
  std::unique_ptr<autograd::SavedVariableHooks>
  get_default_saved_variable_hooks() override {
    if (current_registry == nullptr && current_collection == nullptr) {
      return HostStore::Hooks();
    }
    return std::make_unique<SavedHooks>();
  }
};

autograd::Engine& TheEngine() {
  static auto* const engine = new AgainEngine;  // Its threads never end.
  return *engine;
}

}  // namespace

void UseAgainEngine() {
  static const bool done = [] {
    autograd::set_default_engine_stub(&TheEngine);
    return true;
  }();
  static_cast<void>(done);
}

AgainScope::AgainScope(OperatorGroups groups)
    : registry_(groups.empty() ? nullptr
                               : std::make_unique<AgainRegistry>(groups)) {
  if (registry_ == nullptr) return;
  PIPELOOM_CHECK(current_registry == nullptr);
  current_registry = registry_.get();
}

AgainScope::~AgainScope() {
  if (registry_ != nullptr) current_registry = nullptr;
}

AgainTensors Again(OperatorGroup group, AgainTensors inputs,
                   const AgainMake& make) {
  if (current_registry == nullptr || !current_registry->Has(group) ||
      !at::GradMode::is_enabled()) {
    return make(inputs);
  }
  return current_registry->Run(std::move(inputs), make);
}

}  // namespace pipeloom::runtime
