#include "cli/run/service_flags.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cli/console/build_id.h"

namespace pipeloom::cli {

CommandText ServeText() {
  return {
      "serve", "[options]", "the planner as a gRPC service",
      "Plans coming steps of many jobs in the background; ranks fetch their "
      "instructions. The interface is proto/pipeloom/v1/planner_service.proto, "
      "explained in docs/service.md; health checking and reflection are on.\n\n"
      "Only this machine can reach it unless --listen says otherwise; then a "
      "token and TLS are in order. SIGTERM or Ctrl-C finishes what is waited "
      "for; a second one ends at once. The log goes to stderr, a JSON object a "
      "line."};
}

std::vector<Flag> ServeFlags(ServeSettings* s) {
  return {
      {"listen", &s->listen, "ADDRESS", "where to listen; port 0: a free one"},
      {"tls-cert", &s->tls_cert, "FILE",
       "certificate chain, PEM; read again every minute, as its key"},
      {"tls-key", &s->tls_key, "FILE", "its key, PEM"},
      {"token-file", &s->token_file, "FILE",
       "callers must send this token: authorization: Bearer TOKEN"},
      {"metrics-port",
       &s->metrics_port,
       "PORT",
       "Prometheus text; 0: a free port; -1: none",
       {},
       -1,
       65535},
      Needing({"metrics-port"},
              {"metrics-listen", &s->metrics_listen, "ADDRESS",
               "where, an IPv4 address; 0.0.0.0: everywhere"}),
      {"threads",
       &s->threads,
       "N",
       "for searches; 0: one for each core",
       {},
       0,
       1024},
      {"workers",
       &s->workers,
       "N",
       "searchers of each plan whose job does not say how many",
       {},
       1,
       planner::kMostWorkers},
      {"make-way", &s->make_way, "",
       "searches get less of a core than who answers calls, and give it up at "
       "once"},
      {"max-connections",
       &s->max_connections,
       "N",
       "at a time; half of them of one address",
       {},
       2,
       1e6},
      {"max-jobs", &s->max_jobs, "N", "jobs open at a time", {}, 1, 1e6},
      {"max-queued", &s->max_queued, "N", "plans that may wait", {}, 1, 1e7},
      {"max-samples", &s->max_samples, "N", "of a batch", {}, 1, 1e8},
      {"max-tasks", &s->max_tasks, "N", "of a plan", {}, 1, 1.6e7},
      {"max-message", &s->max_message, "SIZE", "of a request; 64MiB"},
      {"call-memory", &s->call_memory, "SIZE",
       "of requests and of answers that were not read yet; 512MiB"},
      {"plan-memory", &s->plan_memory, "SIZE", "of plans that are kept; 1GiB"},
      {"keep-steps",
       &s->keep_steps,
       "N",
       "plans of so many steps of a job are kept",
       {},
       1,
       1e6},
      {"partition-time", &s->partition_time, "TIME",
       "a search for a job's partition takes at most; 60s"},
      {"partition-search", &s->partition_search, "TIME",
       "search so long for the partition of a job that says nothing of it, "
       "once for each content; 0s: take its rule's; 30s, or 0s if "
       "PIPELOOM_PARTITION is rule"},
      {"warm-up", &s->warm_up, "TIME",
       "search sample steps of a job for so long when it is opened, so that "
       "the searches of its steps go on from their plans; 10s for jobs whose "
       "partition is searched, kept with it, else 0s"},
      {"max-search", &s->max_search, "TIME",
       "a search for a step takes at most; 60s"},
      {"job-idle", &s->job_idle, "TIME",
       "a job without calls for so long gives way when no more may be open; "
       "1h"},
      {"state", &s->state, "DIR",
       "keep jobs, batches and plans here, so that a restart goes on"},
      {"grace", &s->grace, "TIME", "to finish in after SIGTERM; 10s"},
      {"log-level",
       &s->log_level,
       "LEVEL",
       "what is logged",
       {"debug", "info", "warning", "error", "off"}},
      {"data-dir", &s->data_dir, "DIR",
       "where the shipped jobs, models and clusters are, instead of next to "
       "the "
       "binary or in PIPELOOM_DATA_DIR"},
  };
}

CommandText LoadgenText() {
  return {"loadgen", "[options]", "load a service as many trainers would",
          "Opens jobs, submits batches of a shipped or given batch file for "
          "their replicas and steps, fetches every rank's share and checks it: "
          "all ranks of one plan, all replicas of one step, a repeated answer "
          "equal to the first, the whole plan legal. Prints latencies and "
          "errors; fails when a plan is wrong or lost."};
}

std::vector<Flag> LoadgenFlags(LoadSettings* s) {
  return {
      {"target", &s->target, "ADDRESS", "of the service"},
      {"job", &s->job, "JOB", "a JSON file or a shipped job"},
      {"batch", &s->batch, "FILE", "samples as JSON Lines, or a shipped batch"},
      {"tls-ca", &s->tls_ca, "FILE", "whom to trust, PEM; turns TLS on"},
      {"token-file", &s->token_file, "FILE", "the service's token"},
      {"jobs", &s->jobs, "N", "jobs at a time", {}, 1, 1e4},
      {"replicas", &s->replicas, "N", "of each job", {}, 1, 1e4},
      {"ranks", &s->ranks, "N", "pipeline ranks; 0: the job's", {}, 0, 4096},
      {"microbatches",
       &s->microbatches,
       "N",
       "of a step and replica; 0: the "
       "job's",
       {},
       0,
       1e6},
      {"steps", &s->steps, "N", "of each job", {}, 1, 1e7},
      {"clients", &s->clients, "N", "threads that fetch", {}, 1, 1024},
      {"search-deadline", &s->search_deadline, "TIME",
       "of a search, instead of the job's"},
      {"partition-time", &s->partition_time, "TIME",
       "have the partitions searched for so long; else they are made by rule"},
      {"deadline", &s->deadline, "TIME", "of a call; 60s"},
      {"verify", &s->verify, "", "fetch and check whole plans too"},
      {"round-trips", &s->round_trips, "",
       "only measure calls during searches, with one caller for one replica"},
      {"server-pid",
       &s->server_pid,
       "PID",
       "print how much memory that process has after a tenth of the plans and "
       "at the end",
       {},
       0,
       1e9},
      {"format", &s->format, "FORMAT", "of the output", {"table", "json"}},
      {"data-dir", &s->data_dir, "DIR",
       "where the shipped jobs, models, clusters and batches are, instead of "
       "next to the binary or in PIPELOOM_DATA_DIR"},
  };
}

absl::Status BecomeService() {
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program =
      (self.parent_path() / "pipeloom-service").string();
  PIPELOOM_RETURN_IF_ERROR(CheckSameBuild(program));
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line((std::istreambuf_iterator<char>(file)),
                   std::istreambuf_iterator<char>());
  if (!line.empty() && line.back() == '\0') line.pop_back();
  std::vector<std::string> words = absl::StrSplit(line, '\0');
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  return absl::UnavailableError(
      absl::StrCat("cannot start ", program, ": ", strerror(errno),
                   "; it is built where gRPC is found"));
}

}  // namespace pipeloom::cli
