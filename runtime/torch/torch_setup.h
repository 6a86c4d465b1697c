// The arguments of a torch trainer, and the times that it reports.
#ifndef PIPELOOM_RUNTIME_TORCH_TORCH_SETUP_H_
#define PIPELOOM_RUNTIME_TORCH_TORCH_SETUP_H_

#include <cstdint>
#include <vector>

#include "ir/ids.h"
#include "ir/job/model_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::runtime {

// The precision of products and activations. Weights, norms and sums are fp32,
// or fp64 with kFp64, which is for comparisons without rounding errors.
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

// The time that a step's ranks have spent, in seconds of processor time, which
// other processes do not lengthen, or with CUDA of wall time.
struct TorchSpent {
  std::vector<double> tasks{};     // Indexed by task; 0 in other processes.
  std::vector<double> between{};   // Sends and copies, indexed by rank.
  std::vector<double> epilogue{};  // Indexed by rank.
};

// The arguments of a trainer.
struct TorchSetup {
  ModelSpec model{};
  Partition partition{};
  IdVector<ModuleId, bool> frozen{};
  TorchOptions options{};
  // The rank of this process; none: all ranks are threads of this process.
  RankId only_rank{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_SETUP_H_
