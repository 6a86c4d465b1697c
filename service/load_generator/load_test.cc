#include "service/load_generator/load_test.h"

#include <google/protobuf/arena.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/numeric.h"
#include "base/status_macros.h"
#include "partition/batching/batch_split.h"
#include "pipeloom/v1/planner_service.grpc.pb.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/job_proto.h"
#include "proto/convert/plan_proto.h"
#include "service/os/thread_priority.h"
#include "service/os/worker_pool.h"

namespace pipeloom::service {
namespace {

using Clock = std::chrono::steady_clock;
using google::protobuf::util::MessageDifferencer;

constexpr size_t kMaxExamples = 10;
constexpr int kQuietFetches = 2000;
constexpr int kConnections = 4;  // One for each host of a trainer.
constexpr int kCheckers = 2;
constexpr int32_t kMaxUnchecked = 4;  // Number of plans, with all shares.
constexpr std::chrono::milliseconds kProbePause{1};
constexpr int32_t kWave = 32;  // Number of steps; fewer than a service keeps.
constexpr int kProbesPerLook = 50;
constexpr char kService[] = "/pipeloom.v1.PlannerService/";

Percentiles PercentilesOf(std::vector<double> us) {
  Percentiles p;
  p.count = static_cast<int64_t>(us.size());
  if (us.empty()) return p;
  std::sort(us.begin(), us.end());
  const auto at = [&](double share) {
    return us[std::min(us.size() - 1,
                       static_cast<size_t>(share * Real(p.count)))];
  };
  p.p50_us = at(0.5);
  p.p90_us = at(0.9);
  p.p99_us = at(0.99);
  p.max_us = us.back();
  return p;
}

double MicrosSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin)
      .count();
}

class Load {
 public:
  Load(const LoadOptions& options, const std::stop_token& stop)
      : options_(options), stop_(stop) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    std::shared_ptr<grpc::ChannelCredentials> credentials =
        grpc::InsecureChannelCredentials();
    if (!options.tls_roots.empty()) {
      grpc::SslCredentialsOptions tls;
      tls.pem_root_certs = options.tls_roots;
      credentials = grpc::SslCredentials(tls);
    }
    for (int i = 0; i <= kConnections; ++i) {
      arguments.SetInt("pipeloom.connection", i);
      const auto channel =
          grpc::CreateCustomChannel(options.target, credentials, arguments);
      stubs_.push_back(v1::PlannerService::NewStub(channel));
      raw_.push_back(std::make_unique<grpc::GenericStub>(channel));
    }
  }

  absl::StatusOr<LoadResult> Run() {
    PIPELOOM_RETURN_IF_ERROR(MakeBatches());
    const Clock::time_point begin = Clock::now();
    PIPELOOM_RETURN_IF_ERROR(OpenJobs());
    if (options_.round_trips) {
      RoundTrips();
    } else {
      std::jthread probe([this](const std::stop_token& over) { Probe(over); });
      std::vector<std::jthread> threads;
      for (size_t j = 0; j < jobs_.size(); ++j) {
        threads.emplace_back([this, j] { SubmitAll(j); });
      }
      for (int32_t c = 0; c < options_.clients; ++c) {
        threads.emplace_back([this] { FetchAll(); });
      }
    }
    checkers_.reset();  // Waits until all plans are checked.
    if (stop_.stop_requested()) return absl::CancelledError("stopped");
    const double seconds = MicrosSince(begin) / 1e6;
    const int64_t memory =
        options_.server_memory ? options_.server_memory() : 0;
    const Percentiles ready = PercentilesOf(std::exchange(ready_us_, {}));
    const Percentiles bare = PercentilesOf(std::exchange(bare_us_, {}));
    for (int i = 0; i < kQuietFetches && !stop_.stop_requested(); ++i) {
      ProbeOnce();
    }
    LoadResult result;
    {
      const MutexLock lock(&mutex_);
      result = result_;
      result.first = PercentilesOf(std::move(first_us_));
    }
    result.seconds = seconds;
    result.memory_at_end = memory;
    result.ready = ready;
    result.bare = bare;
    result.quiet = PercentilesOf(std::move(ready_us_));
    result.quiet_bare = PercentilesOf(std::move(bare_us_));
    result.open = PercentilesOf(std::move(open_us_));
    for (const std::string& job : jobs_) {
      grpc::ClientContext context;
      Prepare(&context);
      v1::CloseJobRequest request;
      request.set_job_id(job);
      v1::CloseJobResponse response;
      stubs_[0]->CloseJob(&context, request, &response);
    }
    return result;
  }

 private:
  void Prepare(grpc::ClientContext* context) const {
    context->set_deadline(std::chrono::system_clock::now() + options_.deadline);
    if (!options_.token.empty()) {
      context->AddMetadata("authorization",
                           absl::StrCat("Bearer ", options_.token));
    }
  }

  // Makes batches of the samples of one replica's step, as many as the batch
  // has samples for.
  absl::Status MakeBatches() {
    JobSpec one = options_.job;
    one.parallel.dp = 1;
    int64_t first = 0;
    while (first < options_.batch.samples.size()) {
      absl::StatusOr<partition::PackedStep> packed =
          partition::PackStep(one, options_.batch, first);
      if (!packed.ok()) break;
      v1::BatchMetadata& batch = batches_.emplace_back();
      for (int64_t i = 0; i < packed->num_samples; ++i) {
        *batch.add_samples() = convert::ToProto(
            options_.batch.samples[SampleId(static_cast<int32_t>(first + i))]);
      }
      first += packed->num_samples;
    }
    if (batches_.size() > 1) batches_.pop_back();  // It may be short.
    if (!batches_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("the batch makes no step of the job");
  }

  absl::Status OpenJobs() {
    for (int32_t j = 0; j < options_.jobs; ++j) {
      grpc::ClientContext context;
      Prepare(&context);
      v1::OpenJobRequest request;
      *request.mutable_job() = convert::ToProto(options_.job);
      *request.mutable_sample() = batches_[0];
      request.set_job_id(absl::StrFormat("load-%d-%d", getpid(), j));
      request.set_partition_time_us(options_.partition_time.count() / 1000);
      v1::OpenJobResponse response;
      const Clock::time_point begin = Clock::now();
      const grpc::Status status =
          stubs_[0]->OpenJob(&context, request, &response);
      if (!status.ok()) {
        return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                            status.error_message());
      }
      open_us_.push_back(MicrosSince(begin));
      jobs_.push_back(response.job_id());
      const MutexLock lock(&mutex_);
      result_.partitions_tried = response.partitions_tried();
      result_.partition_cut_short = response.partition_cut_short();
    }
    return absl::OkStatus();
  }

  void SubmitAll(size_t job) {
    const int64_t a_step =
        options_.job.parallel.dp * static_cast<int64_t>(jobs_.size());
    for (int32_t step = 0; step < options_.steps; ++step) {
      // Stay no further ahead of the slowest caller than a service keeps steps.
      while (step > OldestOpen() / a_step + kWave && !stop_.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      for (int32_t r = 0; r < options_.job.parallel.dp; ++r) {
        Submit(job, step, r);
      }
    }
  }

  // Submits a batch; returns the number of queued plans, or 0 if the service
  // does not take the batch.
  int32_t Submit(size_t job, int32_t step, int32_t replica) {
    v1::SubmitBatchRequest request;
    request.set_job_id(jobs_[job]);
    request.set_step(step);
    request.set_replica(replica);
    *request.mutable_batch() =
        batches_[static_cast<size_t>(step * options_.job.parallel.dp + replica +
                                     static_cast<int32_t>(job)) %
                 batches_.size()];
    while (!stop_.stop_requested()) {
      grpc::ClientContext context;
      Prepare(&context);
      v1::SubmitBatchResponse response;
      const grpc::Status status =
          stubs_[job % kConnections]->SubmitBatch(&context, request, &response);
      if (status.ok()) return response.queued();
      Count("SubmitBatch", status);
      if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED &&
          status.error_code() != grpc::StatusCode::UNAVAILABLE) {
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return 0;
  }

  // Waits for the step, whose shares ProbeOnce fetches afterwards.
  bool WaitFor(int32_t step) {
    v1::GetRankPlanRequest request;
    request.set_job_id(jobs_[0]);
    request.set_step(step);
    const Clock::time_point begin = Clock::now();
    const bool fetched = Call(kConnections, "GetRankPlan", request).has_value();
    const MutexLock lock(&mutex_);
    if (!fetched) {
      ++result_.lost;
      return false;
    }
    first_us_.push_back(MicrosSince(begin));
    ready_ = request;
    return true;
  }

  void RoundTrips() {
    for (int32_t first = 0; first < options_.steps; first += kWave) {
      const int32_t last = std::min(first + kWave, options_.steps) - 1;
      for (int32_t step = first; step <= last; ++step) Submit(0, step, 0);
      if (!WaitFor(first)) return;
      // Submits the step again, as the answer says how many plans are queued.
      while (!stop_.stop_requested() && Submit(0, last, 0) > 0) {
        for (int i = 0; i < kProbesPerLook; ++i) {
          ProbeOnce();
          std::this_thread::sleep_for(kProbePause);
        }
      }
      if (!WaitFor(last)) return;
      const MutexLock lock(&mutex_);
      result_.plans += last - first + 1;
    }
  }

  void FetchAll() {
    const int64_t replicas = options_.job.parallel.dp;
    const int64_t a_step = replicas * static_cast<int64_t>(jobs_.size());
    const int64_t all = options_.steps * a_step;
    while (!stop_.stop_requested()) {
      const int64_t mine = Begin();
      if (mine >= all) return;
      if (options_.server_memory && mine == all / 10) {
        const int64_t memory = options_.server_memory();
        const MutexLock lock(&mutex_);
        result_.memory_at_tenth = memory;
      }
      v1::GetRankPlanRequest request;
      request.set_step(mine / a_step);
      request.set_job_id(jobs_[static_cast<size_t>(mine % a_step / replicas)]);
      request.set_replica(static_cast<int32_t>(mine % replicas));
      FetchPlan(request);
      const MutexLock lock(&mutex_);
      open_.erase(mine);
    }
  }

  // Returns the next plan to be fetched and marks it as open.
  int64_t Begin() {
    const MutexLock lock(&mutex_);
    return *open_.insert(next_++).first;
  }
  int64_t OldestOpen() {
    const MutexLock lock(&mutex_);
    return open_.empty() ? next_ : *open_.begin();
  }

  struct Fetched {
    v1::GetRankPlanRequest key{};
    // Indexed by rank; the last is the first rank's, fetched again.
    std::vector<grpc::ByteBuffer> shares{};
    std::optional<grpc::ByteBuffer> plan{};
  };

  // Fetches all ranks' shares of one plan, the first one twice, and the whole
  // plan.
  void FetchPlan(v1::GetRankPlanRequest request) {
    const size_t connection =
        static_cast<size_t>(request.replica()) % kConnections;
    auto fetched = std::make_shared<Fetched>();
    const int32_t ranks = options_.job.parallel.pp;
    bool whole = true;
    for (int32_t i = 0; i <= ranks && whole; ++i) {
      request.set_rank(i % ranks);
      const Clock::time_point begin = Clock::now();
      auto share = Call(connection, "GetRankPlan", request);
      const double us = MicrosSince(begin);
      whole = share.has_value();
      if (!whole) break;
      fetched->shares.push_back(*std::move(share));
      if (i > 0) continue;
      const MutexLock lock(&mutex_);
      first_us_.push_back(us);
      ready_ = request;
    }
    if (whole && options_.verify) {
      v1::GetPlanRequest key;
      key.set_job_id(request.job_id());
      key.set_step(request.step());
      key.set_replica(request.replica());
      fetched->plan = Call(connection, "GetPlan", key);
      whole = fetched->plan.has_value();
    }
    {
      const MutexLock lock(&mutex_);
      ++(whole ? result_.plans : result_.lost);
    }
    if (!whole) return;
    fetched->key = request;
    while (!checkers_->Post([this, fetched] { Check(*fetched); })) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // Calls a method without parsing the answer, so that nothing but the call
  // takes time. Counts an error and returns nullopt.
  std::optional<grpc::ByteBuffer> Call(
      size_t connection, const std::string& method,
      const google::protobuf::MessageLite& request) {
    grpc::ByteBuffer response;
    const grpc::Status status =
        CallRaw(connection, absl::StrCat(kService, method), request, &response);
    if (status.ok()) return response;
    Count(method, status);
    return std::nullopt;
  }

  grpc::Status CallRaw(size_t connection, const std::string& method,
                       const google::protobuf::MessageLite& request,
                       grpc::ByteBuffer* response) const {
    grpc::ClientContext context;
    Prepare(&context);
    const grpc::Slice slice(request.SerializeAsString());
    grpc::CompletionQueue queue;
    const auto call = raw_[connection]->PrepareUnaryCall(
        &context, method, grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  void Probe(const std::stop_token& over) {
    while (!over.stop_requested() && !stop_.stop_requested()) {
      ProbeOnce();
      std::this_thread::sleep_for(kProbePause);
    }
  }

  // Measures a fetch of a rank's share of the last ready plan, and an empty
  // call.
  void ProbeOnce() {
    v1::GetRankPlanRequest request;
    {
      const MutexLock lock(&mutex_);
      if (!ready_.has_value()) return;
      request = *ready_;
    }
    request.set_rank(probed_++ % options_.job.parallel.pp);
    grpc::ClientContext context;
    Prepare(&context);
    google::protobuf::Arena arena;
    auto& share = *google::protobuf::Arena::CreateMessage<v1::RankPlan>(&arena);
    Clock::time_point begin = Clock::now();
    const grpc::Status status =
        stubs_[kConnections]->GetRankPlan(&context, request, &share);
    // A step may be gone by now.
    if (!status.ok()) return;
    ready_us_.push_back(MicrosSince(begin));
    {
      const MutexLock lock(&mutex_);
      result_.share_bytes = std::max(
          result_.share_bytes, static_cast<int64_t>(share.ByteSizeLong()));
    }
    // Empty bytes are a valid health check, whose only field is optional.
    const v1::WatchRequest empty;
    grpc::ByteBuffer response;
    begin = Clock::now();
    if (!CallRaw(kConnections, "/grpc.health.v1.Health/Check", empty, &response)
             .ok()) {
      return;
    }
    bare_us_.push_back(MicrosSince(begin));
  }

  template <typename Message>
  static std::optional<Message> Parse(const grpc::ByteBuffer& bytes) {
    grpc::Slice slice;
    Message message;
    if (!bytes.TrySingleSlice(&slice).ok() &&
        !bytes.DumpToSingleSlice(&slice).ok()) {
      return std::nullopt;
    }
    if (!message.ParseFromArray(slice.begin(),
                                static_cast<int>(slice.size()))) {
      return std::nullopt;
    }
    return message;
  }

  void Check(const Fetched& fetched) {
    std::vector<v1::RankPlan> shares;
    std::string wrong;
    for (const grpc::ByteBuffer& bytes : fetched.shares) {
      auto share = Parse<v1::RankPlan>(bytes);
      if (!share.has_value()) wrong = "a share is no RankPlan";
      shares.push_back(std::move(share).value_or(v1::RankPlan()));
    }
    const v1::GetRankPlanRequest& key = fetched.key;
    if (wrong.empty()) wrong = Disagreement(shares);
    if (wrong.empty() && fetched.plan.has_value()) {
      wrong = CheckWhole(*fetched.plan, shares);
    }
    const MutexLock lock(&mutex_);
    if (shares[0].quality() == v1::PLAN_QUALITY_BEST_SO_FAR) {
      ++result_.best_so_far;
    }
    if (wrong.empty()) {
      const auto [it, fresh] = step_sums_.try_emplace(
          {key.job_id(), key.step()}, shares[0].step_checksum());
      if (!fresh &&
          !MessageDifferencer::Equals(it->second, shares[0].step_checksum())) {
        wrong = "replicas of the step do not agree";
      }
    }
    if (wrong.empty()) return;
    ++result_.wrong;
    if (result_.examples.size() < kMaxExamples) {
      result_.examples.push_back(
          absl::StrFormat("job %s, step %d, replica %d: %s", key.job_id(),
                          key.step(), key.replica(), wrong));
    }
  }

  static std::string Disagreement(const std::vector<v1::RankPlan>& shares) {
    for (const v1::RankPlan& share : shares) {
      if (!MessageDifferencer::Equals(share.plan_checksum(),
                                      shares[0].plan_checksum())) {
        return "ranks have shares of different plans";
      }
    }
    if (!MessageDifferencer::Equals(shares.front(), shares.back())) {
      return "the second answer differs from the first";
    }
    return "";
  }

  std::string CheckWhole(const grpc::ByteBuffer& bytes,
                         const std::vector<v1::RankPlan>& shares) {
    const auto response = Parse<v1::GetPlanResponse>(bytes);
    if (!response.has_value()) return "the whole plan is no GetPlanResponse";
    // FromProto checks the checksum.
    const auto plan = convert::FromProto(response->plan());
    if (!plan.ok()) return plan.status().ToString();
    const absl::Status valid = ValidateExecutionPlan(*plan);
    if (!valid.ok()) return valid.ToString();
    if (!MessageDifferencer::Equals(response->plan().checksum(),
                                    shares[0].plan_checksum())) {
      return "the whole plan is not that of the shares";
    }
    for (const v1::RankPlan& share : shares) {
      if (!MessageDifferencer::Equals(
              share.program(), response->plan().programs(share.rank()))) {
        return absl::StrFormat("rank %d's share is not its program",
                               share.rank());
      }
    }
    const MutexLock lock(&mutex_);
    result_.tasks = std::max<int64_t>(result_.tasks, plan->graph.num_tasks());
    return "";
  }

  void Count(absl::string_view method, const grpc::Status& status) {
    const MutexLock lock(&mutex_);
    ++result_.errors[absl::StrCat(
        method, " ",
        absl::StatusCodeToString(
            static_cast<absl::StatusCode>(status.error_code())))];
    if (result_.examples.size() < kMaxExamples) {
      result_.examples.push_back(
          absl::StrCat(method, ": ", status.error_message()));
    }
  }

  const LoadOptions& options_;
  std::stop_token stop_;
  // Indexed by connection; the last one is the probe's.
  std::vector<std::unique_ptr<v1::PlannerService::Stub>> stubs_{};
  std::vector<std::unique_ptr<grpc::GenericStub>> raw_{};
  std::vector<v1::BatchMetadata> batches_{};
  std::vector<std::string> jobs_{};

  std::vector<double> open_us_{};  // Used before other threads are started.

  Mutex mutex_{};
  // Next plan to be fetched.
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  // Plans being fetched.
  std::set<int64_t> open_ ABSL_GUARDED_BY(mutex_){};
  LoadResult result_ ABSL_GUARDED_BY(mutex_){};
  std::vector<double> first_us_ ABSL_GUARDED_BY(mutex_){};
  // A share of a ready plan.
  std::optional<v1::GetRankPlanRequest> ready_ ABSL_GUARDED_BY(mutex_){};
  std::map<std::pair<std::string, int64_t>, v1::Checksum> step_sums_
      ABSL_GUARDED_BY(mutex_){};

  // Used by the probe's thread only.
  std::vector<double> ready_us_{};
  std::vector<double> bare_us_{};
  int32_t probed_ = 0;

  std::optional<WorkerPool> checkers_{
      std::in_place, kCheckers, kMaxUnchecked,
      [] { MakeWayForServing(Background::kSearch); }};
};

}  // namespace

absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options,
                                   const std::stop_token& stop) {
  return Load(options, stop).Run();
}

}  // namespace pipeloom::service
