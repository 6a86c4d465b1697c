// `pipeloom run JOB --device torch`, which trains a small version of the job's
// model with libtorch on the job's batches. It prints each step's loss and
// time, and the time predicted from earlier steps.
//
// libtorch is in a shared module in the folder of the program, which is loaded
// only by this command.
#ifndef PIPELOOM_CLI_RUN_TORCH_RUN_H_
#define PIPELOOM_CLI_RUN_TORCH_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/console/command.h"
#include "cli/input/plan_source.h"
#include "runtime/launch.h"

namespace pipeloom::cli {

struct TorchFlags {
  int64_t scale = 1;
  int64_t ranks = 0;  // Number of pipeline ranks; 0: the job's.
  std::string precision = "fp32";
  std::string place = "cpu";
};
void AppendTorchFlags(TorchFlags* values, std::vector<Flag>* flags);

// The flags of a run.
struct TorchRun {
  TorchFlags flags{};
  PlanSource source{};
  std::vector<std::string> args{};
  int64_t steps = 1;
  std::string transport = "inproc";
  std::string learn{};  // A file for learned costs, or empty.
  bool json = false;    // Whether to print JSON, at the end, instead of rows.
  runtime::RunOptions options{};
};

// Plans and trains the steps. A UsageError: a plan file is given instead of a
// job, but a plan does not say the model. NotFound: there is no torch module.
absl::Status RunTorch(const TorchRun& run, const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_TORCH_RUN_H_
