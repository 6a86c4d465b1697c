// AdamW (Loshchilov, Hutter, ICLR 2019) on the parameters of one stage.
#ifndef PIPELOOM_RUNTIME_TORCH_ADAMW_H_
#define PIPELOOM_RUNTIME_TORCH_ADAMW_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/torch/stage_run.h"
#include "runtime/torch/torch_setup.h"

namespace pipeloom::runtime {

// The optimizer of one stage, with its moments.
class AdamW {
 public:
  // Makes one step. A trained parameter without a gradient counts as having a
  // zero gradient. REQUIRES: all calls are with the same stage.
  void Step(const TorchStage& stage, const TorchOptions& options);

 private:
  struct Moments {
    at::Tensor first{};
    at::Tensor second{};
  };
  int64_t steps_ = 0;
  // One for each trained parameter, in order.
  std::vector<Moments> moments_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_ADAMW_H_
