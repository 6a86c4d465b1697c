// A state folder with random faults: unreadable, damaged, renamed, replaced.
//
// PIPELOOM_STATE_FAULTS sets the number of faults; 14 without it, one of each
// kind.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/core/planner_core.h"
#include "tests/service/service_fixture.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kSteps = 3;

std::string Slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)),
                     std::istreambuf_iterator<char>());
}

// Returns the contents of all files of a folder but its lock.
std::multiset<std::string> ContentsOf(const fs::path& folder) {
  std::multiset<std::string> contents;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (fs::is_regular_file(entry.symlink_status()) &&
        entry.path().filename() != "lock") {
      contents.insert(Slurp(entry.path()));
    }
  }
  return contents;
}

enum class What { kPlan, kBatch, kJob, kJobFolder, kAllJobs };
enum class How { kDirectory, kDangling, kChanged, kCut, kExchanged, kRenamed };

struct Fault {
  What what;
  How how;
  bool starts;  // Whether the service starts with it.
};

constexpr Fault kFaults[] = {
    {What::kPlan, How::kDirectory, true},
    {What::kPlan, How::kDangling, true},
    {What::kPlan, How::kChanged, true},
    {What::kPlan, How::kCut, true},
    {What::kPlan, How::kExchanged, true},
    {What::kBatch, How::kDirectory, false},
    {What::kBatch, How::kDangling, false},
    {What::kBatch, How::kChanged, true},
    {What::kJob, How::kDirectory, false},
    {What::kJob, How::kDangling, false},
    {What::kJob, How::kCut, true},
    {What::kJobFolder, How::kRenamed, true},
    {What::kJobFolder, How::kDangling, false},
    {What::kAllJobs, How::kDangling, false},
};

class StateFaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_ = TestOptions();
    options_.log_level = service::LogLevel::kWarning;
    options_.log = [this](absl::string_view line) {
      const MutexLock lock(&mutex_);
      log_.append(line.data(), line.size());
    };
    options_.core.state_dir = whole_.path();
    TestService service(options_);
    v1::OpenJobResponse opened;
    v1::OpenJobRequest open = SmallJobRequest(1, 20);
    open.set_job_id("job");
    ASSERT_TRUE(service.Open(open, &opened).ok());
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_TRUE(service.Submit(BatchOf(step)).ok());
      ASSERT_TRUE(service.Get("job", step, 0, 0, &shares_.emplace_back()).ok());
    }
  }
  static v1::SubmitBatchRequest BatchOf(int64_t step) {
    return SmallBatch("job", step, static_cast<uint64_t>(step + 1), 12);
  }
  std::string TakeLog() {
    const MutexLock lock(&mutex_);
    return std::exchange(log_, {});
  }

  const TempFolder whole_{};
  service::ServerOptions options_{};
  std::vector<v1::RankPlan> shares_{};  // Indexed by step.
  Mutex mutex_{};
  std::string log_ ABSL_GUARDED_BY(mutex_){};
};

// Puts the fault into the folder. Returns a word that has to be told.
std::string Apply(const Fault& fault, int64_t step, const fs::path& folder) {
  const fs::path job = folder / "jobs" / "job";
  const auto file_of = [&](int64_t s) {
    const std::string number = absl::StrFormat("%016d", s);
    return fault.what == What::kPlan ? job / "plans" / (number + ".0")
                                     : job / "batches" / (number + ".all");
  };
  const fs::path path = fault.what == What::kJob         ? job / "job"
                        : fault.what == What::kJobFolder ? job
                        : fault.what == What::kAllJobs   ? folder / "jobs"
                                                         : file_of(step);
  switch (fault.how) {
    case How::kDirectory:
      fs::rename(path, folder / "away");
      fs::create_directory(path);
      break;
    case How::kDangling:
      fs::rename(path, folder / "away");
      fs::create_symlink("nowhere", path);
      break;
    case How::kChanged: {
      std::fstream file(path, std::ios::in | std::ios::out);
      file.seekp(-3, std::ios::end);
      file.put('#');
      break;
    }
    case How::kCut:
      fs::resize_file(path, fs::file_size(path) / 2);
      break;
    case How::kExchanged:
      fs::rename(path, folder / "away");
      fs::copy_file(file_of((step + 1) % kSteps), path);
      break;
    case How::kRenamed:
      fs::rename(path, folder / "jobs" / "other");
      return "renamed";
  }
  return path.filename().string();
}

TEST_F(StateFaultsTest, NothingIsDeletedNothingIsWrongAndEachFaultIsTold) {
  int faults = static_cast<int>(std::size(kFaults));
  if (const char* text = getenv("PIPELOOM_STATE_FAULTS")) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &faults));
  }
  Random random(23);
  for (int f = 0; f < faults; ++f) {
    const auto kinds = static_cast<int64_t>(std::size(kFaults));
    // Each kind once, then by chance.
    const auto kind = static_cast<size_t>(f < kinds ? f : random.Below(kinds));
    const Fault& fault = kFaults[kind];
    SCOPED_TRACE(::testing::Message() << "fault " << f << ", kind " << kind);
    const TempFolder folder;
    fs::copy(
        whole_.path(), folder.path(),
        fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    const std::string named = Apply(fault, random.Below(kSteps), folder.path());
    const std::multiset<std::string> before = ContentsOf(folder.path());
    TakeLog();
    service::ServerOptions options = options_;
    options.core.state_dir = folder.path();
    absl::StatusOr<std::unique_ptr<service::Server>> started =
        service::Server::Start(options);
    EXPECT_EQ(started.ok(), fault.starts) << started.status();
    if (!started.ok()) {
      EXPECT_EQ(started.status().code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(started.status().message()), HasSubstr(named));
    } else {
      started->reset();
      EXPECT_THAT(TakeLog(), HasSubstr(named));
      TestService service(options);
      v1::OpenJobRequest open = SmallJobRequest(1, 20);
      open.set_job_id("job");
      v1::OpenJobResponse opened;
      ASSERT_TRUE(service.Open(open, &opened).ok());
      EXPECT_EQ(opened.existed(),
                fault.what == What::kPlan || fault.what == What::kBatch);
      for (int64_t step = 0; step < kSteps; ++step) {
        ASSERT_TRUE(service.Submit(BatchOf(step)).ok());
        v1::RankPlan share;
        ASSERT_TRUE(service.Get("job", step, 0, 0, &share).ok());
        EXPECT_TRUE(share.SerializeAsString() ==
                    shares_[static_cast<size_t>(step)].SerializeAsString())
            << "another plan for step " << step;
      }
    }
    const std::multiset<std::string> after = ContentsOf(folder.path());
    for (const std::string& content : before) {
      EXPECT_TRUE(after.contains(content)) << "a file was deleted";
    }
  }
}

TEST_F(StateFaultsTest, APlanIsDurableOnlyIfItsBatchIsOnDisk) {
  const TempFolder folder;
  service::ServerOptions options = options_;
  options.core.state_dir = folder.path();
  TestService service(options);
  const std::string job = service.OpenSmallJob(1);
  // Where the folder of batches would be.
  std::ofstream(absl::StrCat(folder.path(), "/jobs/", job, "/batches")) << "x";
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
  v1::RankPlan share;
  ASSERT_TRUE(service.Get(job, 0, 0, 0, &share).ok());
  EXPECT_FALSE(share.durable());
  EXPECT_THAT(TakeLog(), HasSubstr("batches"));
}

TEST_F(StateFaultsTest, APlanOfALostBatchIsServedWhenItIsSentAgain) {
  v1::OpenJobRequest open = SmallJobRequest(1, 0);
  // With a deadline in time, a plan that is made twice would differ.
  open.mutable_job()->mutable_search()->set_deadline_us(20e3);
  open.set_job_id("timed");
  const v1::SubmitBatchRequest batch = SmallBatch("timed", 0, 9, 48);
  v1::RankPlan before;
  {
    TestService service(options_);
    v1::OpenJobResponse opened;
    ASSERT_TRUE(service.Open(open, &opened).ok());
    ASSERT_TRUE(service.Submit(batch).ok());
    ASSERT_TRUE(service.Get("timed", 0, 0, 0, &before).ok());
  }
  const std::string path =
      absl::StrCat(whole_.path(), "/jobs/timed/batches/0000000000000000.all");
  ASSERT_TRUE(fs::exists(path));
  fs::resize_file(path, 5);
  TestService service(options_);
  ASSERT_TRUE(service.Submit(batch).ok());
  v1::RankPlan after;
  ASSERT_TRUE(service.Get("timed", 0, 0, 0, &after).ok());
  EXPECT_EQ(after.plan_checksum().SerializeAsString(),
            before.plan_checksum().SerializeAsString());
}

// Waits for a plan, for 60 s at most.
service::PlanOrError Await(service::PlannerCore* core, int64_t step) {
  std::promise<service::PlanOrError> plan;
  core->Await({"job", step}, 0,
              service::PlannerCore::Clock::now() + std::chrono::seconds(60),
              [&](service::PlanOrError made) { plan.set_value(made); });
  return plan.get_future().get();
}

// A restart takes the same time whatever the size of plans that no rank asks
// for.
TEST_F(StateFaultsTest, PlansOfEarlierStepsAreReadWhenARankAsks) {
  constexpr int64_t kAll = 9;
  constexpr int64_t kNewest = 4;
  service::CoreOptions options = options_.core;
  service::Log log(service::LogLevel::kWarning, options_.log);
  std::vector<Fingerprint> checksums;
  {
    service::Metrics metrics;
    ASSERT_OK_AND_ASSIGN(const auto core,
                         service::PlannerCore::Create(options, &log, &metrics));
    for (int64_t step = kSteps; step < kAll; ++step) {
      ASSERT_THAT(core->Submit(BatchOf(step)), IsOk());
    }
    for (int64_t step = 0; step < kAll; ++step) {
      const service::PlanOrError plan = Await(core.get(), step);
      ASSERT_THAT(plan, IsOk());
      checksums.push_back((*plan)->checksum);
    }
  }
  const fs::path plans = fs::path(whole_.path()) / "jobs" / "job" / "plans";
  const auto file_of = [&](int64_t step) {
    return plans / absl::StrFormat("%016d.0", step);
  };
  // Damaged, and another one's.
  fs::resize_file(file_of(1), fs::file_size(file_of(1)) - 1);
  fs::copy_file(file_of(3), file_of(2), fs::copy_options::overwrite_existing);
  service::Metrics metrics;
  TakeLog();
  ASSERT_OK_AND_ASSIGN(const auto core,
                       service::PlannerCore::Create(options, &log, &metrics));
  EXPECT_EQ(metrics.plans_restored, kNewest);
  EXPECT_EQ(metrics.state_errors, 2);
  const std::string told = TakeLog();
  EXPECT_THAT(told, HasSubstr("0001.0 is cut off or damaged"));
  EXPECT_THAT(told, HasSubstr("0002.0 holds the plan of step 3"));
  for (int64_t step = 0; step < kAll; ++step) {
    const service::PlanOrError plan = Await(core.get(), step);
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ((*plan)->checksum, checksums[static_cast<size_t>(step)]) << step;
  }
  EXPECT_EQ(metrics.plans_restored, kAll - 2);
  EXPECT_EQ(metrics.plans, 2);
}

// As after a crash between the removals of its batch and of its plan.
TEST_F(StateFaultsTest, APlanThatIsLeftOfAForgottenStepIsRemoved) {
  const fs::path job = fs::path(whole_.path()) / "jobs" / "job";
  fs::remove(job / "batches" / absl::StrFormat("%016d.all", 0));
  const fs::path plan = job / "plans" / absl::StrFormat("%016d.0", 0);
  ASSERT_TRUE(fs::exists(plan));
  service::ServerOptions options = options_;
  options.core.keep_steps = kSteps;
  // The step is kept: its batch may be sent again.
  TestService(options).StopServer();
  EXPECT_TRUE(fs::exists(plan));
  --options.core.keep_steps;
  TestService(options).StopServer();
  EXPECT_FALSE(fs::exists(plan));
  EXPECT_TRUE(fs::exists(job / "plans" / absl::StrFormat("%016d.0", 1)));
}

}  // namespace
}  // namespace pipeloom::testing
