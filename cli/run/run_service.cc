#include "cli/run/run_service.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/fingerprint.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "cli/console/build_id.h"
#include "cli/console/files.h"
#include "cli/console/table.h"
#include "cli/input/partition_source.h"
#include "cli/report/kept_partitions.h"
#include "cli/run/follow.h"
#include "formats/job/spec_loader.h"
#include "formats/profile/device_profiles.h"
#include "formats/text/json_writer.h"
#include "service/guard/listener.h"
#include "service/load_generator/load_test.h"
#include "service/os/heap.h"
#include "service/os/usual_priorities.h"
#include "service/rpc/server.h"

namespace pipeloom::cli {
namespace {

int32_t Cores() {
  return static_cast<int32_t>(
      std::max(1u, std::thread::hardware_concurrency()));
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  if (path.empty()) return std::string();
  PIPELOOM_ASSIGN_OR_RETURN(std::string token, ReadFile(path, 4096));
  absl::StripAsciiWhitespace(&token);
  if (token.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no token"));
  }
  return token;
}

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) return std::string();
  return ReadFile(path, 1 << 20);
}

service::LogLevel LevelOf(const std::string& name) {
  if (name == "debug") return service::LogLevel::kDebug;
  if (name == "warning") return service::LogLevel::kWarning;
  if (name == "error") return service::LogLevel::kError;
  if (name == "off") return service::LogLevel::kOff;
  return service::LogLevel::kInfo;
}

// Returns the source of profiles of the devices of jobs. It reads them anew for
// each job, and warns of each device once that its own profile does not price.
service::ProfileSource ProfilesOf(
    const std::string& data_dir,
    const std::function<void(absl::string_view)>& warn) {
  constexpr size_t kMostNoted = 64;
  struct Noted {
    Mutex mutex{};
    std::set<std::string> devices ABSL_GUARDED_BY(mutex){};
  };
  return [data_dir, warn,
          noted = std::make_shared<Noted>()](const std::string& device)
             -> absl::StatusOr<std::shared_ptr<const DeviceProfile>> {
    const formats::DeviceProfiles profiles(
        data_dir, [](const std::string& path) { return ReadFile(path); });
    PIPELOOM_ASSIGN_OR_RETURN(auto profile, profiles.Find(device));
    if (profile != nullptr && profile->device == device) return profile;
    const MutexLock lock(&noted->mutex);
    if (noted->devices.size() < kMostNoted &&
        noted->devices.insert(device).second) {
      warn(absl::StrCat(
          "note: there is no measured profile of device \"", device, "\": ",
          profile == nullptr
              ? "its peak rates and efficiencies price"
              : absl::StrCat("that of ", profile->device, ", at the rates of ",
                             device, ", prices"),
          " its operators"));
    }
    return profile;
  };
}

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:") ||
         absl::StartsWith(address, "unix:");
}

// Returns the part of an address before the port.
std::string HostOf(const std::string& address) {
  return address.substr(0, std::min(address.rfind(':'), address.size()));
}

// Returns the bytes that a process has in memory; 0 if there is no such
// process.
int64_t ResidentMemory(int64_t pid) {
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat("/proc/", pid, "/statm"));
  if (!text.ok()) return 0;
  const std::vector<std::string> words = absl::StrSplit(*text, ' ');
  int64_t pages = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &pages)) return 0;
  return pages * sysconf(_SC_PAGESIZE);
}

std::string Micros(double us) { return FormatDuration(Microseconds(us)); }

void PrintLoad(const service::LoadResult& r, const Context& context) {
  Table table({"latency", "calls", "median", "90 %", "99 %", "most"});
  const auto row = [&](const char* name, const service::Percentiles& p) {
    table.AddRow({name, absl::StrCat(p.count), Micros(p.p50_us),
                  Micros(p.p90_us), Micros(p.p99_us), Micros(p.max_us)});
  };
  row("open job", r.open);
  row("first rank, waits for the plan", r.first);
  row("share of a plan that is ready", r.ready);
  row("an empty call meanwhile", r.bare);
  row("share when no search runs", r.quiet);
  row("an empty call then", r.quiet_bare);
  context.print(absl::StrFormat(
      "%d plans in %.1f s, %.1f a second; the largest has %d tasks, the "
      "largest share %d bytes\n%d wrong, %d lost, %d cut short by a "
      "deadline\n\n%s",
      r.plans, r.seconds, static_cast<double>(r.plans) / r.seconds, r.tasks,
      r.share_bytes, r.wrong, r.lost, r.best_so_far, table.ToString()));
  if (r.memory_at_end > 0) {
    context.print(absl::StrFormat(
        "the service's memory: %s after a tenth of the plans, %s at the end\n",
        FormatBytes(Bytes(r.memory_at_tenth)),
        FormatBytes(Bytes(r.memory_at_end))));
  }
  if (r.partitions_tried > 0) {
    context.print(absl::StrFormat(
        "partition searched for: %d tried%s\n", r.partitions_tried,
        r.partition_cut_short ? " until the time was over" : ""));
  }
  for (const auto& [name, count] : r.errors) {
    context.print(absl::StrCat(count, " x ", name, "\n"));
  }
  for (const std::string& example : r.examples) {
    context.print(absl::StrCat("  ", example, "\n"));
  }
}

std::string LoadJson(const service::LoadResult& r) {
  formats::JsonWriter json(true);
  json.BeginObject().Key("plans").Int(r.plans);
  json.Key("wrong").Int(r.wrong).Key("lost").Int(r.lost);
  json.Key("best_so_far").Int(r.best_so_far);
  json.Key("memory_at_tenth").Int(r.memory_at_tenth);
  json.Key("memory_at_end").Int(r.memory_at_end);
  json.Key("seconds").Number(r.seconds);
  json.Key("tasks").Int(r.tasks).Key("share_bytes").Int(r.share_bytes);
  const std::pair<const char*, const service::Percentiles*> rows[] = {
      {"open", &r.open}, {"first", &r.first}, {"ready", &r.ready},
      {"bare", &r.bare}, {"quiet", &r.quiet}, {"quiet_bare", &r.quiet_bare}};
  for (const auto& [name, p] : rows) {
    json.Key(name).BeginObject().Key("calls").Int(p->count);
    json.Key("p50_us").Number(p->p50_us).Key("p90_us").Number(p->p90_us);
    json.Key("p99_us").Number(p->p99_us).Key("max_us").Number(p->max_us);
    json.EndObject();
  }
  json.Key("errors").BeginObject();
  for (const auto& [name, count] : r.errors) json.Key(name).Int(count);
  return json.EndObject().EndObject().text() + "\n";
}

// Another build may search better.
Fingerprint KeyOfService(const Fingerprint& content) {
  return FingerprintBuilder().Add("serve").Add(OwnBuild()).Add(content).Build();
}

}  // namespace

absl::Status RunServe(const ServeSettings& settings, const Context& context) {
  if (settings.tls_cert.empty() != settings.tls_key.empty()) {
    return UsageError(
        absl::StrCat(settings.tls_cert.empty() ? "--tls-cert" : "--tls-key",
                     " is not given; TLS needs --tls-cert and --tls-key"));
  }
  if (const absl::Status listen = service::Listener::Check(settings.listen);
      !listen.ok()) {
    return UsageError(listen.message());
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                            FindDataDir(settings.data_dir));
  service::ServerOptions options;
  options.listen = settings.listen;
  options.tls.certificate_file = settings.tls_cert;
  options.tls.key_file = settings.tls_key;
  options.token_file = settings.token_file;
  PIPELOOM_ASSIGN_OR_RETURN(options.token, ReadToken(settings.token_file));
  options.metrics_listen = settings.metrics_listen;
  options.metrics_port = static_cast<int32_t>(settings.metrics_port);
  options.guard.connections = settings.max_connections;
  if (settings.call_memory) options.limits.memory = *settings.call_memory;
  if (settings.max_message) options.max_message = *settings.max_message;
  options.log_level = LevelOf(settings.log_level);
  options.log = [&](absl::string_view line) { context.warn(line); };
  service::CoreOptions& core = options.core;
  core.threads =
      settings.threads > 0 ? static_cast<int32_t>(settings.threads) : Cores();
  core.workers = static_cast<int32_t>(settings.workers);
  core.max_jobs = static_cast<int32_t>(settings.max_jobs);
  core.max_queued = static_cast<int32_t>(settings.max_queued);
  core.batch.samples = settings.max_samples;
  core.max_tasks = settings.max_tasks;
  core.keep_steps = settings.keep_steps;
  if (settings.plan_memory) core.plan_bytes = *settings.plan_memory;
  if (settings.partition_time) core.partition_time = *settings.partition_time;
  PIPELOOM_ASSIGN_OR_RETURN(const std::string source, SourceOf("", "pipeloom"));
  core.usual_partition_time = settings.partition_search.value_or(
      source == "rule" ? kZero : Seconds(30));
  core.warm_up_time = settings.warm_up.value_or(kZero);
  core.searched_warm_up_time = settings.warm_up.value_or(Seconds(10));
  const KeptPartitions kept =
      settings.state.empty()
          ? KeptPartitions::OfUser()
          : KeptPartitions(absl::StrCat(settings.state, "/partitions"));
  core.find_partition = [kept](const Fingerprint& content, const JobSpec& job) {
    return kept.Find(KeyOfService(content), job);
  };
  core.keep_partition = [kept, warn = context.warn](
                            const Fingerprint& content, const JobSpec& job,
                            const Partition& partition) {
    const absl::Status written = kept.Keep(
        KeyOfService(content), job, partition, "searched by `pipeloom serve`");
    if (!written.ok()) {
      warn(absl::StrCat("note: a partition is not kept: ", written.message()));
    }
  };
  core.find_lessons = [kept](const Fingerprint& content,
                             const Partition& partition) {
    return kept.FindLessons(KeyOfService(content), partition);
  };
  core.keep_lessons = [kept, warn = context.warn](
                          const Fingerprint& content,
                          const Partition& partition,
                          const service::Lessons& lessons) {
    const absl::Status written =
        kept.KeepLessons(KeyOfService(content), partition, lessons);
    if (!written.ok()) {
      warn(absl::StrCat("note: plans of sample steps are not kept: ",
                        written.message()));
    }
  };
  if (settings.max_search) core.max_search = *settings.max_search;
  if (settings.job_idle) core.idle_time = *settings.job_idle;
  core.state_dir = settings.state;
  core.files = {.data_dir = data_dir,
                .read = [](const std::string& path) { return ReadFile(path); }};
  core.profiles = ProfilesOf(data_dir, context.warn);
  if (!IsLoopback(settings.listen) && options.token.empty()) {
    context.warn(absl::StrCat("note: ", settings.listen,
                              " can be reached from other machines, and no "
                              "token is asked for (--token-file)"));
  }
  service::UseFewArenas();
  if (!settings.make_way) service::UseUsualPriorities();
  PIPELOOM_ASSIGN_OR_RETURN(const std::unique_ptr<service::Server> server,
                            service::Server::Start(std::move(options)));
  context.print(absl::StrCat(
      "listening on ",
      absl::StartsWith(settings.listen, "unix")
          ? settings.listen
          : absl::StrCat(HostOf(settings.listen), ":", server->port()),
      "\n"));
  if (server->metrics_port() >= 0) {
    context.print(absl::StrCat("metrics on ", settings.metrics_listen, ":",
                               server->metrics_port(), "\n"));
  }
  std::atomic<bool> stopped{false};
  {
    const std::stop_callback on_stop(context.stop, [&] {
      stopped = true;
      stopped.notify_one();
    });
    stopped.wait(false);
  }
  server->Stop(settings.grace.value_or(Seconds(10)));
  return absl::OkStatus();
}

absl::Status RunLoadgen(const LoadSettings& settings, const Context& context) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                            FindDataDir(settings.data_dir));
  const auto read = [](const std::string& path) { return ReadFile(path); };
  service::LoadOptions options;
  options.target = settings.target;
  PIPELOOM_ASSIGN_OR_RETURN(options.tls_roots, ReadPem(settings.tls_ca));
  PIPELOOM_ASSIGN_OR_RETURN(options.token, ReadToken(settings.token_file));
  PIPELOOM_ASSIGN_OR_RETURN(options.job,
                            formats::LoadJob(settings.job, data_dir, read));
  JobSpec& job = options.job;
  job.parallel.dp = static_cast<int32_t>(settings.replicas);
  if (settings.ranks > 0) {
    job.parallel.pp = static_cast<int32_t>(settings.ranks);
  }
  if (settings.microbatches > 0) {
    job.training.microbatches = static_cast<int32_t>(settings.microbatches);
  }
  if (settings.search_deadline) {
    job.search.deadline = *settings.search_deadline;
  }
  // The cluster gets as many nodes as the job needs.
  const int64_t gpus = job.parallel.num_gpus();
  job.cluster.num_nodes = static_cast<int32_t>(std::max<int64_t>(
      job.cluster.num_nodes,
      (gpus + job.cluster.gpus_per_node - 1) / job.cluster.gpus_per_node));
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(job));
  const std::string path =
      absl::StrContains(settings.batch, "/") || FileExists(settings.batch)
          ? settings.batch
          : absl::StrCat(data_dir, "/batches/", settings.batch, ".jsonl");
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<std::string> ignored;
  PIPELOOM_ASSIGN_OR_RETURN(options.batch,
                            formats::ParseBatch(text, path, &ignored));
  options.jobs = static_cast<int32_t>(settings.jobs);
  options.steps = static_cast<int32_t>(settings.steps);
  options.clients = static_cast<int32_t>(settings.clients);
  options.deadline = std::chrono::duration_cast<std::chrono::milliseconds>(
      settings.deadline.value_or(Seconds(60)));
  options.verify = settings.verify;
  options.round_trips = settings.round_trips;
  if (settings.partition_time) {
    options.partition_time = *settings.partition_time;
  }
  if (settings.server_pid > 0) {
    options.server_memory = [pid = settings.server_pid] {
      return ResidentMemory(pid);
    };
  }
  PIPELOOM_ASSIGN_OR_RETURN(const service::LoadResult result,
                            service::RunLoad(options, context.stop));
  if (settings.format == "json") {
    context.print(LoadJson(result));
  } else {
    PrintLoad(result, context);
  }
  if (result.wrong == 0 && result.lost == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%d plans are wrong, %d lost",
                                             result.wrong, result.lost));
}

// Runs the command that only `pipeloom run --service` starts.
absl::Status RunFollowCommand(const std::vector<std::string>& args) {
  std::string token_file;
  std::string tls_ca;
  FollowSettings settings;
  const std::vector<Flag> flags = {
      {"target", &settings.target, "ADDRESS", "of the service"},
      {"token-file", &token_file, "FILE", "the service's token"},
      {"tls-ca", &tls_ca, "FILE", "whom to trust, PEM; turns TLS on"}};
  PIPELOOM_RETURN_IF_ERROR(
      ParseFlags(flags, absl::MakeConstSpan(args).subspan(1)).status());
  PIPELOOM_ASSIGN_OR_RETURN(settings.token, ReadToken(token_file));
  PIPELOOM_ASSIGN_OR_RETURN(settings.tls_roots, ReadPem(tls_ca));
  return RunFollow(settings);
}

int RunServiceCommand(const std::vector<std::string>& args,
                      const Context& context) {
  if (!args.empty() && args[0] == "follow") {
    const absl::Status status = RunFollowCommand(args);
    if (status.ok()) return 0;
    context.warn(absl::StrCat("pipeloom follow: ", status.message()));
    return 1;
  }
  const bool serve = !args.empty() && args[0] == "serve";
  if (!serve && (args.empty() || args[0] != "loadgen")) {
    context.warn("usage: pipeloom serve|loadgen [options]");
    return 2;
  }
  ServeSettings serve_settings;
  LoadSettings load_settings;
  const std::vector<Flag> flags =
      serve ? ServeFlags(&serve_settings) : LoadgenFlags(&load_settings);
  const auto rest = ParseFlags(flags, absl::MakeConstSpan(args).subspan(1));
  absl::Status status = rest.status();
  if (status.ok() && !rest->empty()) {
    status = UsageError(absl::StrCat("unexpected argument ", rest->front()));
  }
  if (status.ok()) {
    status = serve ? RunServe(serve_settings, context)
                   : RunLoadgen(load_settings, context);
  }
  if (status.ok()) return 0;
  context.warn(absl::StrCat("pipeloom ", args[0], ": ", status.message()));
  return IsUsageError(status) ? 2 : 1;
}

}  // namespace pipeloom::cli
