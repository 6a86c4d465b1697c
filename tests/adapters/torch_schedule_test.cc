#include "adapters/torch_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "adapters/action_table.h"
#include "adapters/plan_actions.h"
#include "base/random.h"
#include "emulator/step/emulate_step.h"
#include "planner/lower/lower_plan.h"
#include "planner/orders/dual_pipe_v.h"
#include "tests/adapters/plans.h"
#include "tests/adapters/strategies.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::adapters {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanOf;
using ::pipeloom::testing::RandomOrders;
using ::pipeloom::testing::Strategies;
using ::pipeloom::testing::Strategy;
using ::pipeloom::testing::UniformGraph;
using ::testing::HasSubstr;

struct GoldenCase {
  std::string name{};
  std::string compute{};
  std::string comms{};
};

std::vector<GoldenCase> GoldenCases() {
  std::ifstream file(PIPELOOM_SOURCE_DIR
                     "/tests/adapters/golden/torch_schedules.txt");
  std::vector<GoldenCase> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("case ", 0) == 0) cases.push_back({line, "", ""});
    if (line.rfind("compute ", 0) == 0) {
      absl::StrAppend(&cases.back().compute, line.substr(8), "\n");
    }
    if (line.rfind("comms ", 0) == 0) {
      absl::StrAppend(&cases.back().comms, line.substr(6), "\n");
    }
  }
  return cases;
}

TEST(TorchScheduleTest, TransfersEqualTorchsOwnLoweringTokenForToken) {
  const auto cases = GoldenCases();
  ASSERT_EQ(cases.size(), 10u);
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.name);
    ASSERT_OK_AND_ASSIGN(ActionTable table,
                         ParseTorchCsv(c.compute, TorchDialect::k26));
    EXPECT_EQ(PrintTorchCsv(table), c.compute);
    ASSERT_THAT(AddTransfers(&table), IsOk());
    EXPECT_EQ(PrintTorchCsv(table), c.comms);
    TableShape shape;
    EXPECT_THAT(CheckTable(table, &shape), IsOk());
    EXPECT_TRUE(shape.has_transfers);
  }
}

TEST(TorchScheduleTest, ReadsEachDialectAndNothingElse) {
  const struct {
    std::string text;
    TorchDialect dialect;
    std::string in_26;  // "-": refused.
  } cases[] = {
      {"2F5", TorchDialect::k26, "2F5"},
      {" 2F5 ", TorchDialect::k26, "2F5"},
      {"", TorchDialect::k26, ""},
      {"12RECV_B3", TorchDialect::k26, "12RECV_B3"},
      {"0I1", TorchDialect::k26, "0I1"},
      {"0I1", TorchDialect::k25, "-"},
      {"0B1", TorchDialect::kBw, "0I1"},
      {"0BW1", TorchDialect::kBw, "0B1"},
      {"0BW1", TorchDialect::k26, "-"},
      {"(0F7;7B3)OVERLAP_F_B", TorchDialect::k26, "(0F7;7B3)OVERLAP_F_B"},
      {"(0F7;7I3)OVERLAP_F_B", TorchDialect::k26, "-"},
      {"(0F7;7B3)OVERLAP_F_B", TorchDialect::kBw, "-"},
      {"(0F7)OVERLAP_F_B", TorchDialect::k26, "-"},
      {"3UNSHARD", TorchDialect::k26, ""},
      {"3REDUCE_GRAD", TorchDialect::k25, ""},
      // Texts that torch reads as "0F", "0W1" and so on.
      {"0FOO", TorchDialect::k26, "-"},
      {"0W1_a", TorchDialect::k26, "-"},
      {"0F", TorchDialect::k26, "-"},
      {"-1F0", TorchDialect::k26, "-"},
      {"3RECOMPUTE1", TorchDialect::k26, "-"},
      {"99999999999F0", TorchDialect::k26, "-"},
      {"0F70000", TorchDialect::k26, "-"},
      {"F0", TorchDialect::k26, "-"},
      {"0 F1", TorchDialect::k26, "-"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const auto cell = ParseTorchName(c.text, c.dialect);
    EXPECT_EQ(cell.ok() ? TorchName(*cell) : "-", c.in_26);
  }
  ASSERT_OK_AND_ASSIGN(
      const ActionTable old,
      ParseTorchCsv("0F0,0F1,0B0,0B1,0W1\n", TorchDialect::k25));
  EXPECT_EQ(PrintTorchCsv(old), "0F0,0F1,0B0,0I1,0W1\n");
  EXPECT_THAT(ParseTorchCsv("0F0\n1F0,1FX\n", TorchDialect::k26),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("line 2, cell 2: \"1FX\" is no action")));
  EXPECT_THAT(ParseTorchCsv("", TorchDialect::k26),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("no rank has a row")));
}

TEST(CheckTableTest, NamesWhatTorchCorruptsOrRefuses) {
  const struct {
    std::string name;
    std::string csv;
    std::string message;  // "": legal.
  } cases[] = {
      {"one stage", "0F0,0B0\n", ""},
      {"split", "0F0,0I0,0W0\n", ""},
      {"two ranks", "0F0,0B0\n1F0,1B0\n", ""},
      {"a stage on two ranks", "0F0,0B0\n0F1,0B1\n", "is on rank 0 too"},
      {"skipped microbatch", "0F0,0F1,0B0,0B1\n1F0,1B0,1F0\n", "stands twice"},
      {"no backward", "0F0,0B0,0F1\n", "there is no backward"},
      {"no weight gradient", "0F0,0I0\n", "there is no weight gradient"},
      {"W first", "0F0,0W0,0I0\n", "input gradient has not been done"},
      {"both", "0F0,0B0,0W0\n", "stands twice"},
      {"descending", "0F1,0F0,0B0,0B1\n", "ascending order"},
      {"a gap in the stages", "0F0,0B0\n2F0,2B0\n",
       "stage 1, microbatch 0: there is no forward"},
      {"a deadlock", "0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n",
       "deadlock: rank 0 waits at cell 2, 0B0; rank 1 waits at cell 2, 1F1"},
      {"transfers", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       ""},
      {"send before its pass",
       "0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "its forward has not been done"},
      {"no receive", "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n",
       "its input has not been received"},
      {"no send", "0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
       "there is no send of its output"},
      {"receives in another order than sends",
       "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
       "1RECV_F0,1RECV_F1,1F0,1F1,1B1,1SEND_B1,1B0,1SEND_B0\n",
       "rank 1 to rank 0, message 0: send of the gradient from stage 1, "
       "microbatch 1 meets receive of the gradient from stage 1, microbatch 0"},
      {"a send inside a rank", "0F0,0SEND_F0,1F0,1B0,0B0\n",
       "no rank waits for it"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    ASSERT_OK_AND_ASSIGN(const ActionTable table,
                         ParseTorchCsv(c.csv, TorchDialect::k26));
    TableShape shape;
    const absl::Status status = CheckTable(table, &shape);
    if (c.message.empty()) {
      EXPECT_THAT(status, IsOk());
    } else {
      EXPECT_THAT(status, FailsWith(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr(c.message)));
    }
  }
}

// Checks with separate code that each channel's sends and receives are the same
// in the same order.
bool EveryMessageMatches(const ActionTable& table) {
  std::map<int32_t, size_t> owner;
  for (size_t r = 0; r < table.ranks.size(); ++r) {
    for (const Cell& cell : table.ranks[r]) {
      for (const Action& a : cell.actions) owner[a.stage] = r;
    }
  }
  std::map<std::pair<size_t, size_t>, std::string> sent;
  std::map<std::pair<size_t, size_t>, std::string> received;
  for (size_t r = 0; r < table.ranks.size(); ++r) {
    for (const Cell& cell : table.ranks[r]) {
      for (const Action& a : cell.actions) {
        const std::string m = absl::StrCat(a.microbatch, " ");
        switch (a.kind) {
          case ActionKind::kSendForward:
            absl::StrAppend(&sent[{r, owner[a.stage + 1]}], "f", a.stage, ":",
                            m);
            break;
          case ActionKind::kRecvForward:
            absl::StrAppend(&received[{owner[a.stage - 1], r}], "f",
                            a.stage - 1, ":", m);
            break;
          case ActionKind::kSendBackward:
            absl::StrAppend(&sent[{r, owner[a.stage - 1]}], "b", a.stage, ":",
                            m);
            break;
          case ActionKind::kRecvBackward:
            absl::StrAppend(&received[{owner[a.stage + 1], r}], "b",
                            a.stage + 1, ":", m);
            break;
          default:
            break;
        }
      }
    }
  }
  return sent == received;
}

TEST(CheckTableTest, NoMutatedTableIsAcceptedWhoseMessagesDoNotMatch) {
  int accepted = 0;
  int refused = 0;
  int corrupting = 0;
  const auto cases = GoldenCases();
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const GoldenCase& c = cases[seed % cases.size()];
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << c.name);
    ASSERT_OK_AND_ASSIGN(ActionTable table,
                         ParseTorchCsv(c.comms, TorchDialect::k26));
    auto& row =
        table.ranks[static_cast<size_t>(random.Below(table.ranks.size()))];
    const auto i = static_cast<size_t>(random.Below(row.size() - 1));
    const auto j = static_cast<size_t>(random.Below(row.size()));
    switch (random.Below(4)) {
      case 0:
        std::swap(row[i], row[i + 1]);
        break;
      case 1:
        std::swap(row[i], row[j]);
        break;
      case 2:
        row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      default:
        row.insert(row.begin() + static_cast<std::ptrdiff_t>(j), Cell(row[i]));
        break;
    }
    TableShape shape;
    const bool matches = EveryMessageMatches(table);
    if (CheckTable(table, &shape).ok()) {
      ++accepted;
      EXPECT_TRUE(matches);
    } else {
      ++refused;
      corrupting += matches ? 0 : 1;
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 1000);
  EXPECT_GT(corrupting, 500);
}

TEST(TorchScheduleTest, EveryStrategyComesBackFromItsFileAsItWas) {
  for (const Strategy& strategy : Strategies()) {
    for (const int32_t p : {1, 2, 3, 4, 8}) {
      for (const int32_t m : {2 * p, 2 * p + 3}) {
        SCOPED_TRACE(absl::StrCat(strategy.name, " p ", p, " m ", m));
        const StageGraph graph =
            UniformGraph({.ranks = p,
                          .chunks = strategy.chunks,
                          .microbatches = m,
                          .vee = strategy.vee,
                          .split_backward = strategy.split});
        ASSERT_OK_AND_ASSIGN(RankOrders orders,
                             strategy.orders(planner::VirtualPipeline(graph)));
        ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                             PlanOf(graph, std::move(orders)));
        for (const bool transfers : {false, true}) {
          ASSERT_OK_AND_ASSIGN(const PlanActions actions,
                               ActionsOf(plan, {.transfers = transfers}));
          EXPECT_EQ(actions.shape.has_transfers, transfers && p > 1);
          const std::string csv = PrintTorchCsv(actions.table);
          ASSERT_OK_AND_ASSIGN(const ActionTable read,
                               ParseTorchCsv(csv, TorchDialect::k26));
          EXPECT_EQ(read, actions.table);
          // And as a plan: the same passes in the same order, as long.
          ASSERT_OK_AND_ASSIGN(
              ImportedSchedule imported,
              ScheduleOf(
                  read,
                  {.forward = Microseconds(1000) * strategy.chunks,
                   .backward_input = Microseconds(1000) * strategy.chunks,
                   .weight_grad = Microseconds(1000) * strategy.chunks,
                   .activation = Bytes(1000)},
                  "imported"));
          ASSERT_OK_AND_ASSIGN(
              const ExecutionPlan again,
              PlanOf(imported.graph, std::move(imported.order)));
          EXPECT_THAT(ValidateExecutionPlan(again), IsOk());
          EXPECT_EQ(again.predicted_step_time, plan.predicted_step_time);
          ASSERT_OK_AND_ASSIGN(const PlanActions back, ActionsOf(again));
          if (!transfers) {
            EXPECT_EQ(PrintTorchCsv(back.table), csv);
          }
        }
      }
    }
  }
}

TEST(TorchScheduleTest, RandomChainsComeBackOrAreRefusedWithAReason) {
  int exported = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const StageGraph graph = UniformGraph(
        {.ranks = static_cast<int32_t>(random.Between(1, 4)),
         .chunks = static_cast<int32_t>(random.Between(1, 3)),
         .microbatches = static_cast<int32_t>(random.Between(1, 5)),
         .vee = random.Below(2) == 0,
         .split_backward = random.Below(2) == 0,
         .delay = Microseconds(static_cast<double>(random.Below(3) * 100))});
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         PlanOf(graph, RandomOrders(graph, random)));
    const auto actions = ActionsOf(plan, {.transfers = true});
    if (!actions.ok()) {
      EXPECT_THAT(actions.status(),
                  FailsWith(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("all stages must take them in one")));
      continue;
    }
    ++exported;
    TableShape shape;
    EXPECT_THAT(CheckTable(actions->table, &shape), IsOk());
  }
  EXPECT_GT(exported, 60);
}

TEST(TorchScheduleTest, DualPipeVTakes33UnitsAndNineChunks) {
  constexpr int32_t kRanks = 4;
  constexpr int32_t kMicrobatches = 10;
  const StageGraph graph = UniformGraph({.ranks = kRanks,
                                         .chunks = 2,
                                         .microbatches = kMicrobatches,
                                         .vee = true,
                                         .split_backward = true});
  ASSERT_OK_AND_ASSIGN(RankOrders orders, planner::DualPipeVOrders(
                                              planner::VirtualPipeline(graph)));
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                       PlanOf(graph, std::move(orders)));
  ActionOptions options;
  testing::FindDualPipeVOperations(graph, kMicrobatches, &options);
  ASSERT_FALSE(options.pairs.empty());
  ASSERT_OK_AND_ASSIGN(const PlanActions actions, ActionsOf(plan, options));
  const std::string csv = PrintTorchCsv(actions.table);
  EXPECT_THAT(csv, HasSubstr("OVERLAP_F_B"));
  ASSERT_OK_AND_ASSIGN(const ActionTable read,
                       ParseTorchCsv(csv, TorchDialect::k26));
  ASSERT_OK_AND_ASSIGN(
      ImportedSchedule imported,
      ScheduleOf(read, {.activation = Bytes(1)}, "dualpipe-v"));
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan again,
                       PlanOf(imported.graph, std::move(imported.order)));
  ASSERT_THAT(ValidateExecutionPlan(again), IsOk());
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, emulator::EmulateStep(again));
  EXPECT_DOUBLE_EQ(ToMilliseconds(trace.step_time()), 33.0);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       TimeSchedule(again.graph, testing::OrdersOf(again)));
  EXPECT_EQ(*std::max_element(schedule.peak.begin(), schedule.peak.end()),
            Bytes(9));
}

TEST(TorchScheduleTest, OverlappedPairsSendBothOutputsBehind) {
  ASSERT_OK_AND_ASSIGN(
      ActionTable table,
      ParseTorchCsv("0F0,0F1,3F0,(3F1;3B0)OVERLAP_F_B,3B1,0B0,0B1\n"
                    "1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n",
                    TorchDialect::k26));
  ASSERT_THAT(AddTransfers(&table), IsOk());
  EXPECT_EQ(PrintTorchCsv(table),
            "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3RECV_F1,"
            "(3F1;3B0)OVERLAP_F_B,3SEND_B0,3B1,3SEND_B1,0RECV_B0,0B0,"
            "0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,2F0,2SEND_F0,1F1,2F1,2SEND_F1,2RECV_B0,"
            "2B0,2RECV_B1,1B0,1SEND_B0,2B1,1B1,1SEND_B1\n");
}

TEST(TorchScheduleTest, EverySendIsWaitedForAndNoWaitStandsAlone) {
  const std::string comms =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n";
  ASSERT_OK_AND_ASSIGN(ActionTable table,
                       ParseTorchCsv(comms, TorchDialect::k26));
  ASSERT_THAT(AddWaits(&table), IsOk());
  EXPECT_EQ(PrintTorchCsv(table),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,"
            "0B1,0WAIT_SEND_F1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,"
            "1WAIT_SEND_B0,1WAIT_SEND_B1\n");
  EXPECT_THAT(AddWaits(&table), FailsWith(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("has waits already")));
  const struct {
    std::string rank0{};
    std::string message{};
  } cases[] = {
      {"0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0", "has not been sent"},
      {"0F0,0SEND_F0,0WAIT_SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0", "stands twice"},
      {"0F0,0SEND_F0,0RECV_B0,0B0",
       "stage 0, microbatch 0: there is no wait for the send of its output"},
      {"0F0,0WAIT_SEND_B0,0SEND_F0,0RECV_B0,0B0", "has not been sent"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.rank0);
    ASSERT_OK_AND_ASSIGN(
        const ActionTable changed,
        ParseTorchCsv(c.rank0 + "\n1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n",
                      TorchDialect::k26));
    TableShape shape;
    EXPECT_THAT(
        CheckTable(changed, &shape),
        FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
  // Each rank waits for a receive that the other lists behind its own wait.
  ASSERT_OK_AND_ASSIGN(
      const ActionTable stuck,
      ParseTorchCsv(
          "0F0,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,"
          "0WAIT_SEND_F0\n"
          "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,"
          "1WAIT_SEND_B1\n",
          TorchDialect::k26));
  TableShape shape;
  EXPECT_THAT(CheckTable(stuck, &shape),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("deadlock: rank 0 waits at cell 5, "
                                  "0WAIT_SEND_F1; rank 1 waits at cell 5")));
}

TEST(PlanActionsTest, NamesWhatAFileCannotSay) {
  const StageGraph chain = UniformGraph({.ranks = 2, .microbatches = 2});
  const struct {
    std::string name;
    void (*change)(IdVector<TaskId, Task>*, IdVector<EdgeId, Dependency>*);
    std::string message;
  } cases[] = {
      {"recompute",
       [](auto* tasks, auto*) { (*tasks)[TaskId(3)].recomputes = true; },
       "runs its forward again; wrap the stage in activation checkpointing"},
      {"sub-microbatches",
       [](auto* tasks, auto*) {
         Task extra = (*tasks)[TaskId(0)];
         extra.sub_microbatch = 1;
         tasks->push_back(extra);
       },
       "one of several sub-microbatches"},
      {"a frozen stage",
       [](auto* tasks, auto* edges) {
         const TaskId last(tasks->size() - 1);
         std::vector<Dependency> kept;
         for (const Dependency& e : *edges) {
           if (e.to != last && e.from != last) kept.push_back(e);
         }
         *edges = IdVector<EdgeId, Dependency>(kept);
         std::vector<Task> left(tasks->begin(), tasks->end() - 1);
         *tasks = IdVector<TaskId, Task>(left);
       },
       "has no backward of microbatch 1"},
      {"a skip connection",
       [](auto* tasks, auto* edges) {
         Dependency edge;
         edge.from = TaskId(0);
         edge.to = TaskId(2);  // Its last stage's backward.
         edge.payload = Bytes(8);
         edges->push_back(edge);
         (void)tasks;
       },
       "stages must be a chain"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    IdVector<TaskId, Task> tasks = chain.tasks();
    IdVector<EdgeId, Dependency> edges = chain.edges();
    c.change(&tasks, &edges);
    ASSERT_OK_AND_ASSIGN(
        const StageGraph graph,
        StageGraph::Create("changed", chain.ranks(), chain.module_names(),
                           std::move(tasks), std::move(edges)));
    RankOrders orders(graph.num_ranks());
    for (const TaskId t : graph.task_ids()) {
      orders[graph.task(t).rank].push_back(t);
    }
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         PlanOf(graph, std::move(orders)));
    EXPECT_THAT(ActionsOf(plan, {.format = "torch-csv"}),
                FailsWith(absl::StatusCode::kFailedPrecondition,
                          ::testing::AllOf(
                              HasSubstr("torch-csv cannot say this plan: "),
                              HasSubstr(c.message))));
    if (c.name == "recompute") {
      ASSERT_OK_AND_ASSIGN(const PlanActions dropped,
                           ActionsOf(plan, {.drop_memory = true}));
      EXPECT_THAT(dropped.notes,
                  ::testing::ElementsAre(HasSubstr("checkpoint these")));
    }
  }
}

TEST(PlanActionsTest, RenumbersMicrobatchesThatGoInAnotherOrder) {
  const StageGraph graph = UniformGraph({.ranks = 2, .microbatches = 3});
  RankOrders orders(2);
  for (const int32_t m : {2, 0, 1}) {
    for (const TaskId t : graph.task_ids()) {
      if (graph.task(t).microbatch.value() == m) {
        orders[graph.task(t).rank].push_back(t);
      }
    }
  }
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                       PlanOf(graph, std::move(orders)));
  ASSERT_OK_AND_ASSIGN(const PlanActions actions, ActionsOf(plan));
  EXPECT_THAT(actions.microbatches, ::testing::ElementsAre(2, 0, 1));
  EXPECT_EQ(PrintTorchCsv(actions.table),
            "0F0,0B0,0F1,0B1,0F2,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_THAT(actions.notes,
              ::testing::ElementsAre(HasSubstr("in the order 2,0,1")));
}

// Schedules of torch send what a pass makes right after it.
TEST(PlanActionsTest, SaysThatTensorsAreSentAtOnce) {
  const StageGraph graph = UniformGraph({.ranks = 2, .microbatches = 3});
  RankOrders orders(2);
  for (const TaskId t : graph.task_ids()) {
    orders[graph.task(t).rank].push_back(t);
  }
  ASSERT_OK_AND_ASSIGN(ExecutionPlan plan, PlanOf(graph, std::move(orders)));
  ASSERT_OK_AND_ASSIGN(const PlanActions before, ActionsOf(plan));
  EXPECT_THAT(before.notes, ::testing::IsEmpty());
  // The first tensor of rank 0 is sent after its next pass.
  auto& program = plan.programs[RankId(0)];
  const auto is_send = [](const Instruction& i) {
    return std::holds_alternative<Send>(i);
  };
  const auto send = std::find_if(program.begin(), program.end(), is_send);
  ASSERT_NE(send, program.end());
  const Instruction late = *send;
  const auto next = std::find_if(send, program.end(), [](const Instruction& i) {
    return std::holds_alternative<Compute>(i);
  });
  ASSERT_NE(next, program.end());
  program.insert(next + 1, late);
  program.erase(std::find_if(program.begin(), program.end(), is_send));
  const Instruction wait = WaitSend{std::get<Send>(late).edge};
  std::erase(program, wait);
  program.push_back(wait);
  ASSERT_OK_AND_ASSIGN(const PlanActions after, ActionsOf(plan));
  EXPECT_THAT(after.notes,
              ::testing::ElementsAre(HasSubstr("are sent at once")));
}

}  // namespace
}  // namespace pipeloom::adapters
