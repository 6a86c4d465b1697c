#include "service/plans/plan_ahead.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/plans/search_pace.h"

namespace pipeloom::service {
namespace {

using ::testing::ElementsAre;

// Does all that waits on this thread; the order in which it was done.
class PlanAheadTest : public ::testing::Test {
 protected:
  bool Add(const std::string& job, int64_t step, int32_t replica = 0,
           Duration cost = Milliseconds(1)) {
    PlanAhead::Work work;
    work.run = [this, job, step, replica](const std::stop_token& stop) {
      done_.push_back(job + std::to_string(step) + "." +
                      std::to_string(replica) +
                      (stop.stop_requested() ? "!" : ""));
    };
    work.cancelled = [this, job] { done_.push_back("cancelled " + job); };
    work.cost = cost;
    return ahead_.Submit({job, step, replica}, std::move(work));
  }
  std::vector<std::string> Finish() {
    ahead_.Close();
    while (ahead_.RunNext(PlanAhead::Lane::kAll, {})) {
    }
    return done_;
  }

  PlanAhead ahead_{};
  std::vector<std::string> done_{};
};

TEST_F(PlanAheadTest, EarlierStepsGoFirst) {
  Add("a", 2);
  Add("a", 1, 1);
  Add("a", 1, 0);
  EXPECT_THAT(Finish(), ElementsAre("a1.0", "a1.1", "a2.0"));
}

TEST_F(PlanAheadTest, ALongQueueDoesNotKeepAnotherJobWaiting) {
  for (int64_t step = 0; step < 100; ++step) Add("a", step);
  for (int64_t step = 0; step < 5; ++step) Add("b", step);
  const std::vector<std::string> done = Finish();
  const std::vector<std::string> first(done.begin(), done.begin() + 10);
  EXPECT_EQ(std::count_if(first.begin(), first.end(),
                          [](const std::string& s) { return s[0] == 'b'; }),
            5);
}

TEST_F(PlanAheadTest, SearchTimeIsSharedNotPlans) {
  for (int64_t step = 0; step < 20; ++step) {
    Add("long", step, 0, Milliseconds(10));
    Add("short", step, 0, Milliseconds(1));
  }
  const std::vector<std::string> done = Finish();
  // While the first three long ones are done, as much time goes to short ones.
  int longs = 0;
  int shorts = 0;
  for (size_t i = 0; i < done.size() && longs < 3; ++i) {
    ++(done[i][0] == 'l' ? longs : shorts);
  }
  EXPECT_EQ(shorts, 20);
}

TEST_F(PlanAheadTest, WorkThatNeededNoSearchIsNotCharged) {
  for (int64_t step = 0; step < 5; ++step) {
    PlanAhead::Work work;
    work.run = [this, step](const std::stop_token&) {
      ahead_.Charge({"a", step, 0}, Milliseconds(5));
      ahead_.Charge({"a", step, 0}, kZero);
      done_.push_back("a");
    };
    work.cost = Milliseconds(10);
    EXPECT_TRUE(ahead_.Submit({"a", step, 0}, std::move(work)));
    Add("b", step, 0, Milliseconds(1));
  }
  EXPECT_THAT(Finish(), ElementsAre("a", "a", "a", "a", "a", "b0.0", "b1.0",
                                    "b2.0", "b3.0", "b4.0"));
}

// A search that is asked to stop for another job makes room for that job, also
// if it was charged with more.
TEST_F(PlanAheadTest, RoomIsMadeForTheJobThatHasWaited) {
  Add("long", 0, 0, Milliseconds(100));
  EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
  PlanAhead::Work work;
  work.run = [this](const std::stop_token& stop) {
    Add("long", 1, 0, Milliseconds(100));
    Add("short", 1);
    EXPECT_FALSE(stop.stop_requested());
    ahead_.MakeRoomFor({"long", 1, 0});
    EXPECT_TRUE(stop.stop_requested());
    done_.push_back("short0");
  };
  ahead_.Submit({"short", 0, 0}, std::move(work));
  Add("short", 2);
  Add("long", 2, 0, Milliseconds(100));
  EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
  EXPECT_THAT(Finish(), ElementsAre("long0.0", "short0", "long1.0", "short1.0",
                                    "short2.0", "long2.0"));
}

TEST_F(PlanAheadTest, AJobThatComesLaterIsNotPaidBackForIdling) {
  for (int64_t step = 0; step < 10; ++step) Add("a", step);
  for (int i = 0; i < 5; ++i) ahead_.RunNext(PlanAhead::Lane::kAll, {});
  for (int64_t step = 0; step < 5; ++step) Add("b", step);
  done_.clear();
  const std::vector<std::string> done = Finish();
  // They take turns: of any two neighbours one is a's.
  for (size_t i = 0; i + 1 < 8; ++i) EXPECT_NE(done[i][0], done[i + 1][0]) << i;
}

TEST_F(PlanAheadTest, HurriedWorkGoesFirstWithItsStopRequested) {
  Add("a", 0);
  Add("b", 7);
  ahead_.Hurry({"b", 7, 0});
  EXPECT_THAT(Finish(), ElementsAre("b7.0!", "a0.0"));
  EXPECT_EQ(ahead_.counters().hurried, 1);
}

TEST_F(PlanAheadTest, TheHurriedLaneLeavesTheRestAlone) {
  Add("a", 0);
  Add("a", 1);
  ahead_.Hurry({"a", 1, 0});
  ahead_.Close();
  while (ahead_.RunNext(PlanAhead::Lane::kHurried, {})) {
  }
  EXPECT_THAT(done_, ElementsAre("a1.0!"));
  EXPECT_EQ(ahead_.queued(), 1);
}

TEST_F(PlanAheadTest, PlansThatSomebodyWaitsForGoFirstInTheirJob) {
  for (int64_t step = 0; step < 6; ++step) Add("a", step);
  Add("b", 0);
  ahead_.Await({"a", 5, 0});
  ahead_.Await({"a", 3, 0});
  ahead_.Await({"a", 3, 0});
  ahead_.Await({"a", 4, 0});
  ahead_.Leave({"a", 3, 0});
  ahead_.Leave({"a", 4, 0});
  ahead_.Await({"a", 9, 0});  // Not there yet.
  // The other job has its turn all the same.
  EXPECT_THAT(Finish(), ElementsAre("a3.0", "b0.0", "a5.0", "a0.0", "a1.0",
                                    "a2.0", "a4.0"));
}

TEST_F(PlanAheadTest, ItSaysHowManyWorksOfAJobBeganWhileOneIsQueued) {
  Add("a", 0);
  Add("a", 1);
  Add("a", 2);
  EXPECT_EQ(ahead_.BegunBefore({"a", 2, 0}), 0);
  EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
  EXPECT_EQ(ahead_.BegunBefore({"a", 0, 0}), std::nullopt);
  EXPECT_EQ(ahead_.BegunBefore({"a", 2, 0}), 1);
  EXPECT_EQ(ahead_.BegunBefore({"b", 0, 0}), std::nullopt);
}

TEST(SearchPaceTest, LateStepsHalveItOnceAndStepsInTimeRaiseIt) {
  SearchPace pace;
  EXPECT_EQ(pace.part(), 1);
  pace.InTime(0);
  EXPECT_EQ(pace.part(), 1);
  EXPECT_TRUE(pace.Late(1, /*newest=*/3));
  EXPECT_EQ(pace.part(), 0.5);
  // Their searches had begun.
  for (int64_t step = 1; step <= 3; ++step) EXPECT_FALSE(pace.Late(step, 4));
  EXPECT_EQ(pace.part(), 0.5);
  EXPECT_TRUE(pace.Late(4, 4));
  EXPECT_EQ(pace.part(), 0.25);
  // Each rank fetches its share.
  for (int rank = 0; rank < 4; ++rank) pace.InTime(5);
  EXPECT_DOUBLE_EQ(pace.part(), 0.27);
  pace.BeginAttempt();
  EXPECT_TRUE(pace.Late(0, 0));
  pace.InTime(1);
  EXPECT_DOUBLE_EQ(pace.part(), 0.155);
  for (int64_t step = 2; step < 100; ++step) pace.InTime(step);
  EXPECT_EQ(pace.part(), 1);
  for (int64_t step = 100; step < 200; ++step) pace.Late(step, step);
  EXPECT_EQ(pace.part(), 1.0 / 64);
}

TEST_F(PlanAheadTest, AKeyIsTakenOnce) {
  EXPECT_TRUE(Add("a", 0));
  EXPECT_FALSE(Add("a", 0));
  EXPECT_THAT(Finish(), ElementsAre("a0.0"));
  EXPECT_FALSE(Add("a", 1)) << "the queue is closed";
}

// As when a job is closed and opened anew while a plan of it is made.
TEST_F(PlanAheadTest, WorkOfARunningKeyIsDoneAfterIt) {
  const auto begin = [this](bool hurry) {
    PlanAhead::Work work;
    work.run = [this, hurry](const std::stop_token&) {
      EXPECT_TRUE(Add("a", 0));
      EXPECT_FALSE(Add("a", 0)) << "there is one that comes next";
      EXPECT_EQ(ahead_.queued(), 0);
      if (hurry) ahead_.Hurry({"a", 0, 0});
      done_.push_back("first");
    };
    EXPECT_TRUE(ahead_.Submit({"a", 0, 0}, std::move(work)));
    EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
    EXPECT_EQ(ahead_.queued(), 1);
  };
  begin(false);
  EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
  begin(true);
  EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kHurried, {}));
  EXPECT_THAT(Finish(), ElementsAre("first", "a0.0", "first", "a0.0!"));
}

TEST_F(PlanAheadTest, CancellingDropsWhatComesAfterRunningWork) {
  PlanAhead::Work work;
  work.run = [this](const std::stop_token& stop) {
    EXPECT_TRUE(Add("a", 0));
    ahead_.Cancel("a");
    EXPECT_TRUE(stop.stop_requested());
  };
  EXPECT_TRUE(ahead_.Submit({"a", 0, 0}, std::move(work)));
  EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
  EXPECT_THAT(Finish(), ElementsAre("cancelled a"));
}

TEST_F(PlanAheadTest, CancellingDropsOneJobOnly) {
  Add("a", 0);
  Add("b", 0);
  ahead_.Cancel("a");
  EXPECT_THAT(Finish(), ElementsAre("cancelled a", "b0.0"));
  EXPECT_EQ(ahead_.counters().cancelled, 1);
}

TEST_F(PlanAheadTest, RunningWorkIsAskedToStop) {
  std::stop_token seen;
  PlanAhead::Work work;
  work.run = [&](const std::stop_token& stop) {
    EXPECT_FALSE(stop.stop_requested());
    ahead_.Hurry({"a", 0, 0});
    EXPECT_TRUE(stop.stop_requested());
  };
  ahead_.Submit({"a", 0, 0}, std::move(work));
  Finish();
}

TEST_F(PlanAheadTest, WorkWakesAThreadThatTakesIt) {
  std::atomic<int> done = 0;
  std::vector<std::jthread> workers;
  for (const auto lane : {PlanAhead::Lane::kHurried, PlanAhead::Lane::kHurried,
                          PlanAhead::Lane::kHurried, PlanAhead::Lane::kAll}) {
    workers.emplace_back([this, lane](const std::stop_token& stop) {
      while (ahead_.RunNext(lane, stop)) {
      }
    });
  }
  for (int64_t step = 0; step < 200; ++step) {
    PlanAhead::Work work;
    work.run = [&](const std::stop_token&) { ++done; };
    ASSERT_TRUE(ahead_.Submit({"a", step, 0}, std::move(work)));
    while (done <= step) std::this_thread::yield();
  }
}

// Begins work of step 0 that is like steps 1 and 2, and those; `search` is what
// the first one does.
class LikeWorkTest : public PlanAheadTest {
 protected:
  static constexpr Fingerprint kLike{1, 2};

  void Run(const std::function<void(const std::stop_token&)>& search) {
    const auto add = [this](const std::string& job, int64_t step,
                            std::function<void(const std::stop_token&)> run) {
      EXPECT_TRUE(ahead_.Submit({job, step, 0},
                                {.run = std::move(run), .like = kLike}));
    };
    const auto done = [this](const char* name) {
      return [this, name](const std::stop_token& stop) {
        done_.push_back(name + std::string(stop.stop_requested() ? "!" : ""));
      };
    };
    add("a", 1, done("a1"));
    add("a", 0, [&](const std::stop_token& stop) {
      add("a", 2, done("a2"));
      EXPECT_FALSE(Add("a", 1)) << "a key is taken once";
      EXPECT_FALSE(Add("a", 2)) << "a key is taken once";
      EXPECT_EQ(ahead_.queued(), 2);
      EXPECT_EQ(ahead_.queued("a"), 2);
      EXPECT_EQ(ahead_.ready(), 1);
      search(stop);
      done_.push_back("a0");
    });
    EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
  }
};

TEST_F(LikeWorkTest, ItWaitsUntilWhatRunsHasEnded) {
  Run([this](const std::stop_token&) {
    Add("a", 3);
    // Only what is unlike it can run.
    EXPECT_EQ(ahead_.ready(), 2);
    EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
    EXPECT_THAT(done_, ElementsAre("a3.0"));
  });
  EXPECT_THAT(Finish(), ElementsAre("a3.0", "a0", "a1", "a2"));
}

TEST_F(LikeWorkTest, OtherJobsDoNotWait) {
  Run([this](const std::stop_token&) {
    PlanAhead::Work work;
    work.run = [this](const std::stop_token&) { done_.push_back("b1"); };
    work.like = kLike;
    ASSERT_TRUE(ahead_.Submit({"b", 1, 0}, std::move(work)));
    EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
  });
  EXPECT_THAT(Finish(), ElementsAre("b1", "a0", "a1", "a2"));
}

TEST_F(LikeWorkTest, HurryingItStopsWhatItWaitsFor) {
  Run([this](const std::stop_token& stop) {
    EXPECT_FALSE(stop.stop_requested());
    ahead_.Hurry({"a", 2, 0});
    EXPECT_TRUE(stop.stop_requested());
    ahead_.SetFree({"a", 0, 0}, PlanAhead::Waiters::kHurried);
    EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kHurried, {}));
    EXPECT_EQ(ahead_.queued(), 1);
  });
  EXPECT_THAT(Finish(), ElementsAre("a2!", "a0", "a1"));
  EXPECT_EQ(ahead_.counters().hurried, 1);
}

TEST_F(LikeWorkTest, WhatIsSetFreeRunsAtOnceAndAlsoWhatComesLater) {
  Run([this](const std::stop_token&) {
    ahead_.SetFree({"a", 0, 0}, PlanAhead::Waiters::kAll);
    EXPECT_EQ(ahead_.ready(), 3);
    EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
    EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
    PlanAhead::Work work;
    work.run = [this](const std::stop_token&) { done_.push_back("a4"); };
    work.like = kLike;
    ASSERT_TRUE(ahead_.Submit({"a", 4, 0}, std::move(work)));
    EXPECT_TRUE(ahead_.RunNext(PlanAhead::Lane::kAll, {}));
  });
  EXPECT_THAT(Finish(), ElementsAre("a1", "a2", "a4", "a0"));
}

TEST_F(LikeWorkTest, CancellingDropsItToo) {
  Run([this](const std::stop_token& stop) {
    ahead_.Cancel("a");
    EXPECT_TRUE(stop.stop_requested());
    EXPECT_EQ(ahead_.queued(), 0);
  });
  EXPECT_THAT(Finish(), ElementsAre("a0"));
  EXPECT_EQ(ahead_.counters().cancelled, 2);
}

TEST_F(PlanAheadTest, AStopEndsTheWaiting) {
  std::jthread worker([this](const std::stop_token& stop) {
    EXPECT_FALSE(ahead_.RunNext(PlanAhead::Lane::kAll, stop));
  });
  worker.request_stop();
}

}  // namespace
}  // namespace pipeloom::service
