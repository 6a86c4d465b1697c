#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "adapters/deepspeed_steps.h"
#include "adapters/megatron_layout.h"
#include "adapters/megatron_order.h"
#include "adapters/plan_actions.h"
#include "adapters/torch_schedule.h"
#include "planner/orders/gpipe.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/virtual_pipeline.h"
#include "tests/adapters/plans.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::adapters {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanOf;
using ::pipeloom::testing::UniformGraph;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MegatronOrderTest, EqualsWhatMegatronsOwnFunctionsAnswer) {
  std::ifstream file(PIPELOOM_SOURCE_DIR
                     "/tests/adapters/golden/megatron_orders.txt");
  int cases = 0;
  MegatronOrder order;
  size_t rank = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string word;
    in >> word;
    if (word == "case") {
      int32_t pp = 0, vp = 0, m = 0, group = 0;
      in >> pp >> vp >> m >> group;
      SCOPED_TRACE(line);
      order = MegatronOrderOf(pp, vp, m, group);
      rank = 0;
      ++cases;
      // And it is recognised as what it is.
      ASSERT_OK_AND_ASSIGN(const MegatronOrder again,
                           ToMegatronOrder(FromMegatronOrder(order)));
      const bool runs = StockMegatronOrder(pp, vp, m, group).ok();
      EXPECT_EQ(runs, m != 19);  // Its last group is too small to run.
      EXPECT_EQ(again.group, runs ? group : 0);
      EXPECT_EQ(again.ranks, order.ranks);
      ASSERT_OK_AND_ASSIGN(const MegatronOrder read,
                           ParseMegatronOrder(PrintMegatronOrder(order)));
      EXPECT_EQ(read, order);
    } else if (word == "table") {
      std::string expected;
      for (const MegatronStep& s :
           MegatronTable(order.num_microbatches, order.vp, order.group)) {
        absl::StrAppend(&expected, " ", s.microbatch, ":", s.chunk);
      }
      EXPECT_EQ(line, "table" + expected);
    } else if (word == "rank") {
      int32_t warmup = 0;
      in >> warmup;
      EXPECT_EQ(MegatronWarmup(order.pp, static_cast<int32_t>(rank), order.vp,
                               order.num_microbatches, order.group),
                warmup);
      EXPECT_EQ(line, absl::StrCat("rank ", warmup, " ",
                                   absl::StrJoin(order.ranks[rank], " ")))
          << "pp " << order.pp << " vp " << order.vp << " rank " << rank;
      ++rank;
    }
  }
  EXPECT_EQ(cases, 14);
}

TEST(MegatronOrderTest, RefusesWhatMegatronRefuses) {
  EXPECT_THAT(StockMegatronOrder(4, 2, 8, 3),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("group is 3; it must be at least pp, 4")));
  EXPECT_THAT(StockMegatronOrder(4, 2, 4, 5),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("at most the microbatches, 4")));
  EXPECT_THAT(StockMegatronOrder(4, 2, 10, 8),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("leave 2, fewer than pp, 4")));
}

TEST(MegatronOrderTest, OurStrategiesAreRecognisedAsStock) {
  for (const int32_t p : {2, 4}) {
    const StageGraph plain = UniformGraph({.ranks = p, .microbatches = 8});
    ASSERT_OK_AND_ASSIGN(
        RankOrders orders,
        planner::OneFOneBOrders(planner::VirtualPipeline(plain)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         PlanOf(plain, std::move(orders)));
    ASSERT_OK_AND_ASSIGN(const PlanActions actions, ActionsOf(plan));
    ASSERT_OK_AND_ASSIGN(const MegatronOrder order,
                         ToMegatronOrder(actions.table));
    EXPECT_EQ(order.group, p);
    const StageGraph two =
        UniformGraph({.ranks = p, .chunks = 2, .microbatches = 8});
    ASSERT_OK_AND_ASSIGN(
        orders, planner::InterleavedOrders(planner::VirtualPipeline(two)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan interleaved,
                         PlanOf(two, std::move(orders)));
    ASSERT_OK_AND_ASSIGN(const PlanActions chunks, ActionsOf(interleaved));
    ASSERT_OK_AND_ASSIGN(const MegatronOrder stock,
                         ToMegatronOrder(chunks.table));
    EXPECT_EQ(stock.group, p);
  }
  // GPipe is none of Megatron's, but an order can say it.
  const StageGraph plain = UniformGraph({.ranks = 2, .microbatches = 4});
  ASSERT_OK_AND_ASSIGN(
      const ExecutionPlan plan,
      PlanOf(plain, planner::GPipeOrders(planner::VirtualPipeline(plain))));
  ASSERT_OK_AND_ASSIGN(const PlanActions actions, ActionsOf(plan));
  const auto order = ToMegatronOrder(actions.table);
  if (order.ok()) {
    EXPECT_EQ(order->group, 0);
  }
}

TEST(MegatronOrderTest, NamesWhatAnOrderCannotSay) {
  const struct {
    std::string csv;
    std::string message;
  } cases[] = {
      {"0F0,0I0,0W0\n", "has its weight gradient apart"},
      {"0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "stage 2 of 4 is on rank 1"},
      {"0F0,0F1,0B1,0B0\n", "backwards of a stage go in ascending order"},
      {"0F0,1F0,1B0,0B0\n2F0,2B0\n", "stage 1 of 3 is on rank 0"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.csv);
    ASSERT_OK_AND_ASSIGN(const ActionTable table,
                         ParseTorchCsv(c.csv, TorchDialect::k26));
    EXPECT_THAT(
        ToMegatronOrder(table),
        FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
  EXPECT_THAT(ParseMegatronOrder("megatron-order pp 1 vp 1 microbatches 1 "
                                 "group 1\nrank 0: 1 -2\n"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("line 2: step -2")));
  EXPECT_THAT(ParseMegatronOrder("hello\n"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("expected \"megatron-order pp N")));
}

TEST(MegatronLayoutTest, EqualsWhatMegatronMakesOfTheStrings) {
  // Megatron-Core d98e8a64, PipelineParallelLayerLayout; E embedding, t
  // decoder, m multi-token prediction, L loss, by stage.
  std::vector<std::string> large = {"Ettt"};
  large.insert(large.end(), 29, "tt");
  large.insert(large.end(), {"m", "L"});
  const struct {
    std::string text;
    int32_t pp;
    std::vector<std::string> stages;
  } cases[] = {
      {"Et*3|(tt|)*29,m|L", 16, large},
      {"E||t|L", 2, {"E", "", "t", "L"}},
      {"Et|t*2|tt|tL", 4, {"Et", "tt", "tt", "tL"}},
      {"Ettt|tt|tt|ttL", 2, {"Ettt", "tt", "tt", "ttL"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    ASSERT_OK_AND_ASSIGN(const auto stages, ParseMegatronLayout(c.text, c.pp));
    EXPECT_EQ(stages, c.stages);
    const std::string printed = PrintMegatronLayout(stages);
    ASSERT_OK_AND_ASSIGN(const auto again, ParseMegatronLayout(printed, c.pp));
    EXPECT_EQ(again, stages) << printed;
    EXPECT_LE(printed.size(), c.text.size() + 1);
  }
  ASSERT_OK_AND_ASSIGN(const auto stages, MegatronLayoutOf({4, 5, 5, 5, 4, 0}));
  EXPECT_EQ(PrintMegatronLayout(stages), "Et*4|(t*5|)*3t*4|L");
}

TEST(MegatronLayoutTest, SaysWhereAndWhyAStringIsRefused) {
  const struct {
    std::string text;
    int32_t pp;
    std::string message;
  } cases[] = {
      {"t|tL", 2, "the first symbol must be E"},
      {"Et|t", 2, "the last symbol must be L"},
      {"Et|t|L", 2, "must be a multiple of pp"},
      {"Em|tL", 2, "every m must stand behind every t"},
      {"Etm|mL", 2, "all m must be in one stage"},
      {"Etm||t|L", 2, "every m must stand behind every t"},
      {"Etx|L", 2, "character 3: expected one of E t m L"},
      {"E(tt|L", 2, "\")\" is missing"},
      {"Et*0|L", 2, "count of at least 1"},
      {"Et*99999999|L", 2, "more than 2^20 symbols"},
      {"Ett)|L", 2, "unexpected \")\""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(
        ParseMegatronLayout(c.text, c.pp),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

TEST(DeepSpeedTest, OneFOneBBecomesListsThatRunWithBlockingTransfers) {
  for (const int32_t p : {1, 2, 4, 7}) {
    for (const int32_t m : {1, 3, 8}) {
      SCOPED_TRACE(absl::StrCat("p ", p, " m ", m));
      ASSERT_OK_AND_ASSIGN(const MegatronOrder order,
                           StockMegatronOrder(p, 1, m, p));
      const ActionTable table = FromMegatronOrder(order);
      ASSERT_OK_AND_ASSIGN(const DeepSpeedSteps steps, ToDeepSpeed(table));
      ASSERT_OK_AND_ASSIGN(const DeepSpeedSteps read,
                           ParseDeepSpeed(PrintDeepSpeed(steps)));
      EXPECT_EQ(read, steps);
      ASSERT_OK_AND_ASSIGN(const ActionTable again, FromDeepSpeed(read));
      EXPECT_EQ(again, table);
      // A rank holds at most one more than 1F1B needs: what it receives early.
      for (int32_t r = 0; r < p; ++r) {
        const int32_t needs = std::min(m, p - r);
        EXPECT_GE(steps.ranks[static_cast<size_t>(r)].num_buffers, needs);
      }
    }
  }
  ASSERT_OK_AND_ASSIGN(const ActionTable two,
                       ParseTorchCsv("0F0,0B0\n1F0,1B0\n", TorchDialect::k26));
  ASSERT_OK_AND_ASSIGN(const DeepSpeedSteps steps, ToDeepSpeed(two));
  EXPECT_EQ(PrintDeepSpeed(steps),
            "deepspeed ranks 2 microbatches 1\n"
            "rank 0 buffers 1\n"
            "  LoadMicroBatch(0) ForwardPass(0) SendActivation(0)\n"
            "  RecvGrad(0) BackwardPass(0)\n"
            "  ReduceTiedGrads ReduceGrads OptimizerStep\n"
            "rank 1 buffers 1\n"
            "  RecvActivation(0) LoadMicroBatch(0) ForwardPass(0)\n"
            "  BackwardPass(0) SendGrad(0)\n"
            "  ReduceTiedGrads ReduceGrads OptimizerStep\n");
}

// The engine receives into one tensor; outputs are copied from it at once.
TEST(DeepSpeedTest, NothingIsReceivedBetweenAGradientAndItsBackward) {
  const std::string early =
      "0F0,0F1,0F2,0B2,0B0,0B1\n1F0,1F1,1B0,1F2,1B1,1B2\n"
      "2F0,2B0,2F1,2B1,2F2,2B2\n";
  ASSERT_OK_AND_ASSIGN(const ActionTable table,
                       ParseTorchCsv(early, TorchDialect::k26));
  ASSERT_OK_AND_ASSIGN(const DeepSpeedSteps steps, ToDeepSpeed(table));
  int32_t gradients = 0;
  for (const DeepSpeedSteps::Rank& rank : steps.ranks) {
    int32_t received = -1;
    for (const DeepSpeedStep& step : rank.steps) {
      for (const DeepSpeedInstruction& i : step) {
        if (i.name == "RecvGrad") {
          received = i.buffer;
          ++gradients;
        } else if (i.name == "RecvActivation") {
          EXPECT_EQ(received, -1) << PrintDeepSpeed(steps);
        } else if (i.name == "BackwardPass" && &rank != &steps.ranks.back()) {
          EXPECT_EQ(received, i.buffer) << PrintDeepSpeed(steps);
          received = -1;
        }
      }
    }
  }
  EXPECT_EQ(gradients, 6);
  ASSERT_OK_AND_ASSIGN(const ActionTable again, FromDeepSpeed(steps));
  EXPECT_EQ(again, table);
}

TEST(DeepSpeedTest, NamesWhatTheListsCannotSay) {
  const struct {
    std::string csv;
    std::string message;
  } cases[] = {
      {"0F0,1F0,1B0,0B0\n", "every rank has one stage, in order"},
      {"1F0,1B0\n0F0,0B0\n", "stage 0 on rank 1"},
      {"0F0,0I0,0W0\n", "has its weight gradient apart"},
      {"0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n",
       "1F1 follows 1F0 on the last rank"},
      {"0F0,0F1,0B1,0B0\n", "0F1 follows 0F0 on the last rank"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.csv);
    ASSERT_OK_AND_ASSIGN(const ActionTable table,
                         ParseTorchCsv(c.csv, TorchDialect::k26));
    EXPECT_THAT(
        ToDeepSpeed(table),
        FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
  EXPECT_THAT(ParseDeepSpeed("deepspeed ranks 1 microbatches 1\n"
                             "rank 0 buffers 1\n  ForwardPass(1)\n"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("line 3: \"ForwardPass(1)\"")));
  ASSERT_OK_AND_ASSIGN(
      const DeepSpeedSteps twice,
      ParseDeepSpeed("deepspeed ranks 1 microbatches 1\nrank 0 buffers 1\n"
                     "  LoadMicroBatch(0) ForwardPass(0)\n"
                     "  LoadMicroBatch(0) ForwardPass(0)\n"));
  EXPECT_THAT(FromDeepSpeed(twice),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("the buffer holds microbatch 0")));
}

// TrainSchedule of DeepSpeed 0.19.8 for 3 stages and 2 microbatches, as it
// lists them.
constexpr absl::string_view kStockLists =
    R"(deepspeed ranks 3 microbatches 2
rank 0 buffers 2
  LoadMicroBatch(0) ForwardPass(0)
  SendActivation(0)
  LoadMicroBatch(1) ForwardPass(1)
  SendActivation(1)
  RecvGrad(0) BackwardPass(0)
  RecvGrad(1) BackwardPass(1) ReduceTiedGrads ReduceGrads OptimizerStep
rank 1 buffers 2
  RecvActivation(0) ForwardPass(0)
  SendActivation(0)
  RecvActivation(1) ForwardPass(1)
  RecvGrad(0) SendActivation(1) BackwardPass(0)
  SendGrad(0)
  RecvGrad(1) BackwardPass(1)
  SendGrad(1) ReduceTiedGrads ReduceGrads OptimizerStep
rank 2 buffers 2
  RecvActivation(0) LoadMicroBatch(0) ForwardPass(0)
  BackwardPass(0)
  SendGrad(0) RecvActivation(1) LoadMicroBatch(1) ForwardPass(1)
  BackwardPass(1)
  SendGrad(1)
  ReduceTiedGrads ReduceGrads OptimizerStep
)";

absl::StatusOr<ActionTable> ReadLists(absl::string_view text) {
  PIPELOOM_ASSIGN_OR_RETURN(const DeepSpeedSteps steps, ParseDeepSpeed(text));
  return FromDeepSpeed(steps);
}

TEST(DeepSpeedTest, ReadsTheEnginesOwnSchedule) {
  ASSERT_OK_AND_ASSIGN(const ActionTable table, ReadLists(kStockLists));
  ASSERT_OK_AND_ASSIGN(
      const ActionTable expected,
      ParseTorchCsv("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n",
                    TorchDialect::k26));
  EXPECT_EQ(table, expected);
}

// The passes of these lists are those of the schedule above; the engine would
// hang, stop, or train with another microbatch's tensors.
TEST(DeepSpeedTest, RefusesListsWhoseTransfersAreWrong) {
  const struct {
    absl::string_view old;
    absl::string_view now;
    absl::string_view message;
  } cases[] = {
      {"microbatches 2", "microbatches 3", "through 2 microbatches; the file"},
      {"LoadMicroBatch(0) ForwardPass(0)", "ForwardPass(0)",
       "rank 0, step 0: ForwardPass(0), but no LoadMicroBatch"},
      {"RecvActivation(0) ForwardPass(0)", "RecvActivation(1) ForwardPass(0)",
       "rank 1, step 0: ForwardPass(0), but no RecvActivation"},
      {"RecvActivation(0) ForwardPass(0)",
       "LoadMicroBatch(0) RecvActivation(0) ForwardPass(0)",
       "LoadMicroBatch(0), but only the ends load"},
      {"  SendActivation(0)", "  SendActivation(1)",
       "rank 0, step 1: SendActivation(1), but the buffer is empty"},
      {"  SendActivation(1)\n", "", "BackwardPass(1), but its output has not"},
      {"  SendActivation(1)", "  SendActivation(1) SendActivation(1)",
       "SendActivation(1), but its output has gone"},
      {"RecvGrad(0) BackwardPass(0)", "RecvGrad(1) BackwardPass(0)",
       "BackwardPass(0), but no RecvGrad was right before it"},
      {"RecvGrad(0) BackwardPass(0)", "RecvGrad(0) RecvGrad(1) BackwardPass(0)",
       "the backward of the gradient that came last has not run"},
      {"BackwardPass(0)\n  SendGrad(0)\n  RecvGrad(1)",
       "SendGrad(0) BackwardPass(0)\n  RecvGrad(1)",
       "SendGrad(0), but its backward has not run"},
      {"  SendGrad(1)\n  Reduce", "  Reduce",
       "rank 2 ends, but buffer 1 holds microbatch 1"},
      {"  SendGrad(1)\n  ReduceTiedGrads",
       "  SendGrad(1) RecvActivation(0)\n  ReduceTiedGrads",
       "rank 2 ends, but no forward takes the input in buffer 0"},
      {"  SendGrad(1)\n  ReduceTiedGrads ReduceGrads OptimizerStep",
       "  SendGrad(1)", "rank 2 ends, but there is no OptimizerStep"},
      {"  SendGrad(1)\n  ReduceTiedGrads ReduceGrads OptimizerStep",
       "  ReduceTiedGrads ReduceGrads OptimizerStep\n  SendGrad(1)",
       "SendGrad(1), but the optimizer's step was before it"},
      // Rank 1 takes the outputs of rank 0 the other way round.
      {"  SendActivation(0)\n  LoadMicroBatch(1) ForwardPass(1)\n"
       "  SendActivation(1)",
       "  LoadMicroBatch(1) ForwardPass(1)\n  SendActivation(1)\n"
       "  SendActivation(0)",
       "rank 1 takes the output of microbatch 1 of rank 0 for its microbatch "
       "0"},
      {"RecvGrad(0) BackwardPass(0)\n  RecvGrad(1) BackwardPass(1) Reduce",
       "RecvGrad(1) BackwardPass(1)\n  RecvGrad(0) BackwardPass(0) Reduce",
       "rank 0 takes the gradient of microbatch 0 of rank 1 for its "
       "microbatch 1"},
      {"RecvActivation(1) ForwardPass(1)\n  RecvGrad(0) SendActivation(1) "
       "BackwardPass(0)\n  SendGrad(0)",
       "RecvGrad(0) BackwardPass(0)\n  SendGrad(0)\n  RecvActivation(1) "
       "ForwardPass(1)\n  SendActivation(1)",
       "with blocking transfers rank"},
  };
  for (const auto& c : cases) {
    std::string once(kStockLists);
    const size_t at = once.find(std::string(c.old));
    ASSERT_NE(at, std::string::npos) << c.old;
    once.replace(at, c.old.size(), std::string(c.now));
    EXPECT_THAT(ReadLists(once),
                FailsWith(absl::StatusCode::kFailedPrecondition,
                          HasSubstr(std::string(c.message))))
        << once;
  }
}

}  // namespace
}  // namespace pipeloom::adapters
