// Any bytes as a request: the first byte picks the call, the rest is its
// message. Every call answers, and what it plans is legal (the service checks).
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/job_proto.h"
#include "service/core/planner_core.h"
#include "tests/support/small_job.h"

namespace {

using pipeloom::service::PlannerCore;

struct Fixture {
  Fixture() {
    pipeloom::service::CoreOptions options;
    options.threads = 1;
    options.max_jobs = 4;
    options.max_tasks = 2000;
    options.batch = {.samples = 64, .items = 256};
    options.keep_steps = 4;
    options.files = {
        .data_dir = absl::StrCat(PIPELOOM_SOURCE_DIR, "/workloads"),
        .read = [](const std::string& path) -> absl::StatusOr<std::string> {
          std::ifstream file(path, std::ios::binary);
          if (!file) return absl::NotFoundError(path);
          return std::string((std::istreambuf_iterator<char>(file)),
                             std::istreambuf_iterator<char>());
        }};
    options.partition_time = std::chrono::milliseconds(5);
    core = *PlannerCore::Create(options, &log, &metrics);
    pipeloom::JobSpec job = pipeloom::testing::SmallVlmJob();
    job.search.evaluations = 1;
    pipeloom::v1::OpenJobRequest open;
    open.set_job_id("j");
    *open.mutable_job() = pipeloom::convert::ToProto(job);
    *open.mutable_sample() =
        pipeloom::convert::ToProto(pipeloom::testing::RandomBatch(1, 8, 2));
    PIPELOOM_CHECK(core->OpenJob(open).ok());
  }
  pipeloom::service::Log log{pipeloom::service::LogLevel::kOff, nullptr};
  pipeloom::service::Metrics metrics{};
  std::unique_ptr<PlannerCore> core{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Fixture* fixture = new Fixture();
  if (size == 0) return 0;
  PlannerCore& core = *fixture->core;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      pipeloom::v1::OpenJobRequest request;
      if (!request.ParseFromString(bytes)) return 0;
      const auto opened = core.OpenJob(request);
      if (opened.ok() && opened->job_id() != "j") {
        pipeloom::v1::CloseJobRequest close;
        close.set_job_id(opened->job_id());
        close.set_close_key(request.close_key());
        (void)core.Close(close);
      }
      break;
    }
    case 1: {
      pipeloom::v1::SubmitBatchRequest request;
      if (!request.ParseFromString(bytes)) return 0;
      request.set_job_id("j");
      (void)core.Submit(request);
      break;
    }
    case 2: {
      pipeloom::v1::ReportTraceRequest request;
      if (request.ParseFromString(bytes)) (void)core.Report(request);
      break;
    }
    default: {
      pipeloom::v1::WhatIfRequest request;
      if (!request.ParseFromString(bytes)) return 0;
      request.set_job_id("j");
      request.set_evaluations(1);
      (void)core.WhatIf(request, {});
    }
  }
  PIPELOOM_CHECK(fixture->metrics.plans_refused == 0);
  return 0;
}
