// AdamW (Loshchilov, Hutter, ICLR 2019) on the parameters of one stage.
#ifndef PIPELOOM_RUNTIME_TORCH_ADAMW_H_
#define PIPELOOM_RUNTIME_TORCH_ADAMW_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "runtime/torch/stage_run.h"
#include "runtime/torch/torch_setup.h"

namespace pipeloom::runtime {

class AdamW {
 public:
  // One step. Always with the same stage. A trained parameter without a
  // gradient has one of zero.
  void Step(const TorchStage& stage, const TorchOptions& options);

 private:
  struct Moments {
    at::Tensor first{};
    at::Tensor second{};
  };
  int64_t steps_ = 0;
  std::vector<Moments> moments_{};  // By trained parameter, in order.
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_ADAMW_H_
