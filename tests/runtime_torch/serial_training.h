// Training as one process does it without a pipeline: every module on whole
// microbatches, plain autograd, torch's own AdamW. Shares the layers with the
// torch device and nothing else: rows are handed on by sample, not by edge.
#ifndef PIPELOOM_TESTS_RUNTIME_TORCH_SERIAL_TRAINING_H_
#define PIPELOOM_TESTS_RUNTIME_TORCH_SERIAL_TRAINING_H_

#include <memory>

#include "runtime/torch/torch_trainer.h"

namespace pipeloom::runtime {

class SerialTraining {
 public:
  explicit SerialTraining(const TorchSetup& setup);
  ~SerialTraining();

  double Step(const TorchWork& work);  // Its loss.
  TorchValues Weights() const;
  void SetWeights(const TorchValues& weights);
  TorchValues Gradients() const;  // Those of the last step.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_TESTS_RUNTIME_TORCH_SERIAL_TRAINING_H_
