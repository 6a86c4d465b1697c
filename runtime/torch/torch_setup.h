// What a torch trainer is made of, and what it says of its time.
#ifndef PIPELOOM_RUNTIME_TORCH_TORCH_SETUP_H_
#define PIPELOOM_RUNTIME_TORCH_TORCH_SETUP_H_

#include <cstdint>
#include <vector>

#include "ir/ids.h"
#include "ir/job/model_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::runtime {

// Of products and activations. Weights, norms and sums are fp32, or fp64 with
// kFp64, which is for comparing: what remains is no rounding.
enum class TorchPrecision { kFp32, kBf16, kFp64 };
int64_t BytesPerElement(TorchPrecision precision);

struct TorchOptions {
  TorchPrecision precision = TorchPrecision::kFp32;
  bool cuda = false;
  int32_t cuda_index = 0;
  uint64_t seed = 1;
  // AdamW (Loshchilov, Hutter, ICLR 2019).
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};

// What a step's ranks have spent, in seconds: of processor time, which other
// processes do not lengthen; with CUDA of wall time.
struct TorchSpent {
  std::vector<double> tasks{};     // By task; 0: of another process.
  std::vector<double> between{};   // By rank: sends and copies.
  std::vector<double> epilogue{};  // By rank.
};

// What a trainer is made of.
struct TorchSetup {
  ModelSpec model{};
  Partition partition{};
  IdVector<ModuleId, bool> frozen{};
  TorchOptions options{};
  // Of a process that is one rank; none: all ranks are threads of this one.
  RankId only_rank{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_SETUP_H_
