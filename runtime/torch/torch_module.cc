// The entry point of the shared module; see runtime/torch/torch_trainer.h.
#include "runtime/torch/torch_trainer.h"

#ifdef __clang__
#pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
#endif

// A C name, but C++ types: module and program are of one build.
extern "C" __attribute__((visibility("default")))
absl::StatusOr<std::unique_ptr<pipeloom::runtime::TorchTrainer>>
PipeloomMakeTorchTrainer(const pipeloom::runtime::TorchSetup& setup) {
  return pipeloom::runtime::MakeTorchTrainer(setup);
}
