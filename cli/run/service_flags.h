// The options of `pipeloom serve` and `pipeloom loadgen`. Both run in a program
// of their own, `pipeloom-service`, since loading gRPC lengthens every start of
// a binary by about 10 ms; `pipeloom` knows the options and starts that
// program.
#ifndef PIPELOOM_CLI_RUN_SERVICE_FLAGS_H_
#define PIPELOOM_CLI_RUN_SERVICE_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/console/command.h"
#include "cli/console/flags.h"
#include "planner/core/search_budget.h"

namespace pipeloom::cli {

struct ServeSettings {
  std::string listen = "127.0.0.1:50551";
  std::string tls_cert{};
  std::string tls_key{};
  std::string token_file{};
  std::string metrics_listen = "127.0.0.1";
  int64_t metrics_port = -1;
  int64_t threads = 0;
  int64_t workers = planner::kUsualWorkers;
  bool make_way = true;
  int64_t max_connections = 16'384;
  int64_t max_jobs = 64;
  int64_t max_queued = 4096;
  int64_t max_samples = 1'000'000;
  int64_t max_tasks = 400'000;
  std::optional<Bytes> max_message{};
  std::optional<Bytes> call_memory{};
  std::optional<Bytes> plan_memory{};
  int64_t keep_steps = 64;
  std::optional<Duration> partition_time{};
  std::optional<Duration> partition_search{};
  std::optional<Duration> warm_up{};
  std::optional<Duration> max_search{};
  std::optional<Duration> job_idle{};
  std::string state{};
  std::optional<Duration> grace{};
  std::string log_level = "info";
  std::string data_dir{};
};

struct LoadSettings {
  std::string target = "127.0.0.1:50551";
  std::string job = "dip-vlm-s";
  std::string batch = "mixed";
  std::string tls_ca{};
  std::string token_file{};
  int64_t jobs = 8;
  int64_t replicas = 16;
  int64_t ranks = 0;
  int64_t microbatches = 0;
  int64_t steps = 20;
  int64_t clients = 16;
  std::optional<Duration> search_deadline{};
  std::optional<Duration> partition_time{};
  std::optional<Duration> deadline{};
  bool verify = true;
  bool round_trips = false;
  int64_t server_pid = 0;
  std::string format = "table";
  std::string data_dir{};
};

CommandText ServeText();
std::vector<Flag> ServeFlags(ServeSettings* settings);
CommandText LoadgenText();
std::vector<Flag> LoadgenFlags(LoadSettings* settings);

// Replaces this process by the `pipeloom-service` in the folder of the running
// binary, with the same arguments. Returns only with an error.
// FailedPrecondition: the two programs are of different builds.
absl::Status BecomeService();

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_SERVICE_FLAGS_H_
