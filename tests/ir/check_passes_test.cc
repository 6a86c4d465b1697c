#include "ir/check/check_passes.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

// A step as it is changed before it becomes a graph.
struct Parts {
  IdVector<TaskId, Task> tasks{};
  IdVector<EdgeId, Dependency> edges{};
  std::vector<LossShare> shares{};
  std::vector<LossTotal> totals{};
  IdVector<RankId, std::vector<Instruction>> programs{{}, {}};

  Task& At(int32_t task) { return tasks[TaskId(task)]; }
  Dependency& Edge(int32_t edge) { return edges[EdgeId(edge)]; }
  void DropEdge(int32_t edge) {
    std::vector<Dependency> rest = edges.items();
    rest.erase(rest.begin() + edge);
    edges = IdVector<EdgeId, Dependency>(std::move(rest));
  }
  // Drops a task that no edge leaves.
  void DropTask(int32_t task) {
    std::vector<Dependency> rest;
    for (Dependency d : edges) {
      if (d.to == TaskId(task)) continue;
      if (d.from > TaskId(task)) d.from = TaskId(d.from.value() - 1);
      if (d.to > TaskId(task)) d.to = TaskId(d.to.value() - 1);
      rest.push_back(d);
    }
    edges = IdVector<EdgeId, Dependency>(std::move(rest));
    std::vector<Task> others = tasks.items();
    others.erase(others.begin() + task);
    tasks = IdVector<TaskId, Task>(std::move(others));
  }

  ExecutionPlan Plan() const {
    ExecutionPlan plan;
    auto graph = StageGraph::Create("step", IdVector<RankId, RankSpec>(2),
                                    {"encoder", "model"}, tasks, edges);
    PIPELOOM_CHECK(graph.ok());
    plan.graph = *std::move(graph);
    plan.programs = programs;
    plan.loss_shares = shares;
    plan.loss_totals = totals;
    return plan;
  }
};

// Two microbatches; stage 0 is the encoder's, on rank 0, stages 1 and 2 are the
// model's, on both ranks. Microbatch 0 has two sub-microbatches of the encoder,
// microbatch 1 has none.
//
//   task   0 1      encoder, microbatch 0, forward
//          2 3      model
//          4 5 6 7  model, backward and weight gradient by stage
//          8 9      encoder, backward of sub-microbatches 0 and 1
//          10 11    model, microbatch 1
//          12 13 14 15
Parts Step() {
  Parts p;
  const auto task = [&](Pass pass, int32_t stage, int32_t microbatch,
                        int32_t sub, int64_t alloc, int64_t free) {
    p.tasks.push_back({.rank = RankId(stage == 2 ? 1 : 0),
                       .pass = pass,
                       .module = ModuleId(stage == 0 ? 0 : 1),
                       .stage = StageId(stage),
                       .microbatch = MicrobatchId(microbatch),
                       .sub_microbatch = sub,
                       .duration = Microseconds(1),
                       .alloc = Bytes(alloc),
                       .free = Bytes(free)});
  };
  const auto edge = [&](int32_t from, int32_t to, int64_t rows) {
    p.edges.push_back({.from = TaskId(from),
                       .to = TaskId(to),
                       .payload = Bytes(2 * rows),
                       .rows = rows,
                       .width = rows > 0 ? 1 : 0});
  };
  task(Pass::kForward, 0, 0, 0, 5, 0);
  task(Pass::kForward, 0, 0, 1, 5, 0);
  for (int32_t m = 0; m < 2; ++m) {
    const int32_t at = p.tasks.size();
    task(Pass::kForward, 1, m, 0, 7, 0);
    task(Pass::kForward, 2, m, 0, 7, 0);
    for (int32_t stage = 2; stage >= 1; --stage) {
      task(Pass::kBackward, stage, m, 0, 2, 4);
      task(Pass::kWeightGrad, stage, m, 0, 0, 5);
    }
    if (m == 0) {
      edge(0, at, 4);  // Edges 0 and 1.
      edge(1, at, 3);
    }
    edge(at, at + 1, 100 + m);  // 2; in microbatch 1 edge 12.
    edge(at + 1, at + 2, 0);
    edge(at + 2, at + 3, 0);        // 4
    edge(at, at + 4, 0);            // 5
    edge(at + 2, at + 4, 100 + m);  // 6
    edge(at + 4, at + 5, 0);        // 7
    if (m > 0) break;
    task(Pass::kBackward, 0, 0, 0, 0, 5);
    task(Pass::kBackward, 0, 0, 1, 0, 5);
    edge(0, 8, 0);
    edge(at + 4, 8, 4);  // 9
    edge(1, 9, 0);
    edge(at + 4, 9, 3);  // 11
    p.shares.push_back({ModuleId(1), MicrobatchId(0), 0, 100, 6});
    p.shares.push_back({ModuleId(1), MicrobatchId(1), 0, 101, 5});
    p.totals.push_back({ModuleId(1), 400, 22});
  }
  return p;
}

struct Case {
  const char* message;
  std::function<void(Parts&)> change;
};

TEST(CheckPassesTest, AcceptsAStepAndTasksThatAreNoPasses) {
  EXPECT_THAT(CheckPasses(Step().Plan()), IsOk());
  EXPECT_THAT(CheckPasses(ExecutionPlan()), IsOk());
  Parts unnamed = Step();
  for (Task& task : unnamed.tasks) {
    task.stage = StageId();
    task.microbatch = MicrobatchId();
  }
  EXPECT_THAT(CheckPasses(unnamed.Plan()), IsOk());
}

TEST(CheckPassesTest, AcceptsFusedBackwardsAmongSplitOnesAndAFrozenEncoder) {
  Parts fused = Step();
  fused.At(4).free += fused.At(5).free;
  fused.DropTask(5);
  EXPECT_THAT(CheckPasses(fused.Plan()), IsOk());
  Parts frozen = Step();
  for (const int32_t forward : {0, 1}) frozen.At(forward).free = Bytes(5);
  frozen.DropTask(9);
  frozen.DropTask(8);
  EXPECT_THAT(CheckPasses(frozen.Plan()), IsOk());
}

// As where no sample of a microbatch has work for the model.
TEST(CheckPassesTest, AcceptsAStepWithoutPassesOfAMicrobatch) {
  Parts parts = Step();
  for (int32_t t = 10; t < 16; ++t) parts.At(t).microbatch = MicrobatchId(4);
  EXPECT_THAT(CheckPasses(parts.Plan()), IsOk());
}

TEST(CheckPassesTest, WithoutAnEdgeTheOrderOfTheProgramCounts) {
  Parts parts = Step();
  parts.DropEdge(4);
  parts.DropEdge(3);
  parts.programs[RankId(1)] = {Compute{TaskId(3)}, Compute{TaskId(4)},
                               Compute{TaskId(5)}};
  EXPECT_THAT(CheckPasses(parts.Plan()), IsOk());
}

TEST(CheckPassesTest, EachViolationIsNamedWithItsTask) {
  const Case cases[] = {
      {"task 3 (F model stage -1 microbatch 0): stage -1 must be in",
       [](Parts& p) { p.At(3).stage = StageId(); }},
      {"microbatch -1 and sub-microbatch 0 >= 0",
       [](Parts& p) { p.At(3).microbatch = MicrobatchId(); }},
      {"stage 2 is of module 1 (model) and on rank 1 by task 3, not of module "
       "1 and on rank 0",
       [](Parts& p) { p.At(4).rank = RankId(0); }},
      {"stage 1 is of module 1 (model) and on rank 0 by task 2, not of module "
       "0 and on rank 0",
       [](Parts& p) { p.At(6).module = ModuleId(0); }},
      {"rank 0, task 10 (F model stage 1 microbatch 0): task 2 is the same "
       "pass already",
       [](Parts& p) { p.At(10).microbatch = MicrobatchId(0); }},
      {"task 14 (B model stage 1 microbatch 0): task 6 is the same pass "
       "already",
       [](Parts& p) { p.At(14).microbatch = MicrobatchId(0); }},
      {"task 7 (B model stage 1 microbatch 0): task 6 is the same pass already",
       [](Parts& p) {
         p.At(7).pass = Pass::kBackward;
         p.edges.push_back({.from = TaskId(2), .to = TaskId(7)});
       }},
      {"module model, microbatch 1, sub-microbatch 0: it has no forward on "
       "stage 2",
       [](Parts& p) { p.At(11).pass = Pass::kBackward; }},
      {"its sub-microbatch is 2; the next one of its module is 1",
       [](Parts& p) { p.At(1).sub_microbatch = p.At(9).sub_microbatch = 2; }},
      {"task 14 (B model stage 1 microbatch 7): there is no forward of stage "
       "1, "
       "microbatch 7, sub-microbatch 0 for it",
       [](Parts& p) { p.At(14).microbatch = MicrobatchId(7); }},
      {"task 5 (W model stage 2 microbatch 0 sub-microbatch 3): there is no "
       "backward of stage 2, microbatch 0, sub-microbatch 3 for it",
       [](Parts& p) { p.At(5).sub_microbatch = 3; }},
      {"task 4 (B model stage 2 microbatch 0) is computed by instruction 1, "
       "before task 3, on which it depends, by instruction 2",
       [](Parts& p) {
         p.DropEdge(3);
         p.programs[RankId(1)] = {Compute{TaskId(10)}, Compute{TaskId(4)},
                                  Compute{TaskId(3)}};
       }},
      {"edge 18 depends on task 2 a second time",
       [](Parts& p) {
         p.edges.push_back({.from = TaskId(2), .to = TaskId(6)});
       }},
      {"task 3 (F model stage 2 microbatch 0): no edge makes it depend on the "
       "stage before, task 2",
       [](Parts& p) { p.DropEdge(2); }},
      {"it depends on 1 sub-microbatches of the modules that feed module "
       "model; its microbatch has 2",
       [](Parts& p) { p.DropEdge(1); }},
      {"edge 18 from task 0 to task 3 has 8 B, 0 rows and a width of 0; task 3 "
       "(F model stage 2 microbatch 0) depends on the stage before, once",
       [](Parts& p) {
         p.edges.push_back(
             {.from = TaskId(0), .to = TaskId(3), .payload = Bytes(8)});
       }},
      {"edge 18 from task 2 to task 10 has 0 B, 1 rows",
       [](Parts& p) {
         p.edges.push_back({.from = TaskId(2), .to = TaskId(10), .rows = 1});
       }},
      {"edge 18 from task 3 to task 6 has 8 B",
       [](Parts& p) {
         p.edges.push_back(
             {.from = TaskId(3), .to = TaskId(6), .payload = Bytes(8)});
       }},
      {"task 6 (B model stage 1 microbatch 0): no edge makes it depend on task "
       "4, whose gradient it takes: its forward hands its output to task 3 "
       "(edge 2)",
       [](Parts& p) { p.DropEdge(6); }},
      {"edge 6 from task 4 to task 6 has 201 B, 100 rows and a width of 1; the "
       "tensor that it is the gradient of, edge 2, has 200 B",
       [](Parts& p) { p.Edge(6).payload = Bytes(201); }},
      {"task 1 (F encoder stage 0 microbatch 0 sub-microbatch 1): it has no "
       "backward; task 0 of the same module and microbatch has one",
       [](Parts& p) {
         p.At(1).free = Bytes(5);
         p.DropTask(9);
       }},
      {"task 10 (F model stage 1 microbatch 1): it has no backward; by task 7 "
       "its module is trained",
       [](Parts& p) {
         for (int32_t t = 15; t > 11; --t) p.DropTask(t);
         p.At(10).free = p.At(11).free = Bytes(7);
       }},
      {"task 3 (F model stage 2 microbatch 0): with its backward it takes 9 B "
       "and gives back 4 B",
       [](Parts& p) { p.DropTask(5); }},
      {"with its backward and weight gradient it takes 10 B and gives back 9 "
       "B; both must be equal",
       [](Parts& p) { p.At(12).alloc += Bytes(1); }},
      {"task 2 (F model stage 1 microbatch 0): it recomputes; only a backward",
       [](Parts& p) { p.At(2).recomputes = true; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    Parts parts = Step();
    c.change(parts);
    EXPECT_THAT(
        CheckPasses(parts.Plan()),
        FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
}

TEST(CheckLossTest, EachViolationIsNamedWithItsShare) {
  EXPECT_THAT(CheckLoss(Step().Plan()), IsOk());
  const Case cases[] = {
      {"loss_share 1: with tokens 1010 and instances 5 the shares of module 1 "
       "pass its loss_total of 400 and 22: before it they are 100 and 6",
       [](Parts& p) { p.shares[1].tokens = 1010; }},
      {"loss_share 1: with tokens 101 and instances 50",
       [](Parts& p) { p.shares[1].instances = 50; }},
      {"loss_share 0: with tokens -1",
       [](Parts& p) { p.shares[0].tokens = -1; }},
      {"loss_share 0: tokens and instances are 0",
       [](Parts& p) { p.shares[0].tokens = p.shares[0].instances = 0; }},
      {"loss_share 1 must be of module 1, microbatch 1, sub-microbatch 0; it "
       "is of module 1, microbatch 0, sub-microbatch 0",
       [](Parts& p) { p.shares[1] = p.shares[0]; }},
      {"loss_share 1 must be of module 1, microbatch 1, sub-microbatch 0; it "
       "is missing",
       [](Parts& p) { p.shares.pop_back(); }},
      {"loss_share 2: no task is of module 1, microbatch 1, sub-microbatch 1",
       [](Parts& p) {
         p.shares.push_back({ModuleId(1), MicrobatchId(1), 1, 1, 1});
       }},
      {"loss_share 0: no task is of", [](Parts& p) { p.totals.clear(); }},
      {"loss_total 0: module 7 must be larger than the one before, -1, and "
       "less than 2",
       [](Parts& p) { p.totals[0].module = ModuleId(7); }},
      {"loss_total 0: tokens -4 and instances 22 must be >= 0",
       [](Parts& p) { p.totals[0].tokens = -4; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    Parts parts = Step();
    c.change(parts);
    EXPECT_THAT(
        CheckLoss(parts.Plan()),
        FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
}

TEST(CheckLossTest, NoShareHasMoreTokensThanItsTensorsHaveRows) {
  Parts parts = Step();
  // A third microbatch, so that most of them agree.
  for (int32_t t = 10; t < 16; ++t) {
    Task task = parts.At(t);
    task.microbatch = MicrobatchId(2);
    parts.tasks.push_back(task);
  }
  for (int32_t e = 12; e < 18; ++e) {
    Dependency d = parts.Edge(e);
    d.from = TaskId(d.from.value() + 6);
    d.to = TaskId(d.to.value() + 6);
    parts.edges.push_back(d);
  }
  parts.shares.push_back({ModuleId(1), MicrobatchId(2), 0, 101, 5});
  ASSERT_THAT(CheckPasses(parts.Plan()), IsOk());
  EXPECT_THAT(CheckLoss(parts.Plan()), IsOk());
  parts.shares[2].tokens = 102;
  EXPECT_THAT(CheckLoss(parts.Plan()),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("loss_share 2 (microbatch 2, sub-microbatch "
                                  "0): tokens is 102; the tensors between its "
                                  "stages have 101 rows")));
  // Modules that hand on fewer rows than they have tokens.
  for (LossShare& share : parts.shares) share.tokens = 110;
  EXPECT_THAT(CheckLoss(parts.Plan()), IsOk());
}

}  // namespace
}  // namespace pipeloom
