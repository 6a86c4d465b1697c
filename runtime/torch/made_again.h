// Recomputation of results that are thrown away in the forward and made again
// in the backward.
//
//   const AgainScope scope(groups);   // While a layer's forward runs.
//   y = Again(OperatorGroup::kNorms, {x}, norm)[0];
//   z = product(y);                   // Saves y for its weight gradient.
//
// With kNorms among the groups, autograd keeps nothing that `norm` makes:
// neither the tensors that `norm` saves for itself, nor y or views of it,
// wherever they are saved. When the first operator of the backward needs one of
// them, `norm` runs again, from x, or from the inputs of x if x was thrown
// away, too. A result that was made again lives until the last operator that
// saved it is done.
//
// Autograd asks its engine for hooks on saved tensors, which only Python's
// engine has; UseAgainEngine installs an engine with hooks.
#ifndef PIPELOOM_RUNTIME_TORCH_MADE_AGAIN_H_
#define PIPELOOM_RUNTIME_TORCH_MADE_AGAIN_H_

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <vector>

#include "ir/operator_group.h"

namespace pipeloom::runtime {

// Installs the engine for the whole process. Further calls do nothing.
void UseAgainEngine();

using AgainTensors = std::vector<at::Tensor>;
// A pure function of its inputs and of objects that outlive the backward.
using AgainMake = std::function<AgainTensors(const AgainTensors& inputs)>;

class AgainRegistry;

// A scope in which results of the given groups are thrown away, on this thread.
// REQUIRES: UseAgainEngine() was called; scopes are not nested.
class AgainScope {
 public:
  explicit AgainScope(OperatorGroups groups);
  ~AgainScope();
  AgainScope(const AgainScope&) = delete;
  AgainScope& operator=(const AgainScope&) = delete;

 private:
  std::unique_ptr<AgainRegistry> registry_;
};

// Returns make(inputs). Inside a scope with the group, and with gradients
// enabled, the results are thrown away and made again as described above.
// REQUIRES: `inputs` are all tensors that `make` reads, except parameters.
AgainTensors Again(OperatorGroup group, AgainTensors inputs,
                   const AgainMake& make);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_MADE_AGAIN_H_
