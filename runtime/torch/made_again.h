// Results that are thrown away in the forward and made again in the backward.
//
//   const AgainScope scope(groups);   // While a layer's forward runs.
//   y = Again(OperatorGroup::kNorms, {x}, norm)[0];
//   z = product(y);                   // Saves y for its weight gradient.
//
// With kNorms among the groups nothing that `norm` makes is kept by autograd,
// neither what it saves for itself nor y, wherever that is saved, nor views of
// it. The first operator of the backward that asks for one of them has `norm`
// run again, from x, or from what x is made from if that was thrown away too.
// What was made again lives until the last operator that saved it is through.
//
// Autograd asks its engine for hooks on saved tensors, which only Python's has
// by itself; UseAgainEngine puts one with hooks in its place.
#ifndef PIPELOOM_RUNTIME_TORCH_MADE_AGAIN_H_
#define PIPELOOM_RUNTIME_TORCH_MADE_AGAIN_H_

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <vector>

#include "ir/operator_group.h"

namespace pipeloom::runtime {

// For the whole process; further calls do nothing.
void UseAgainEngine();

using AgainTensors = std::vector<at::Tensor>;
// A pure function of its inputs and of what outlives the backward.
using AgainMake = std::function<AgainTensors(const AgainTensors& inputs)>;

class AgainRegistry;

// On this thread, one at a time. REQUIRES: UseAgainEngine() was called.
class AgainScope {
 public:
  explicit AgainScope(OperatorGroups groups);
  ~AgainScope();
  AgainScope(const AgainScope&) = delete;
  AgainScope& operator=(const AgainScope&) = delete;

 private:
  std::unique_ptr<AgainRegistry> registry_;
};

// make(inputs). Inside a scope with the group, and where a graph is made, as
// above; `inputs` are all tensors that `make` reads but parameters.
AgainTensors Again(OperatorGroup group, AgainTensors inputs,
                   const AgainMake& make);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_MADE_AGAIN_H_
