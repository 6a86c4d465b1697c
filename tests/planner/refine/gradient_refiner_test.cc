#include "planner/refine/gradient_refiner.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "tests/planner/small_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::FormSelection;
using partition::MemorySelection;
using partition::PassForm;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::MakeSmallStep;
using ::pipeloom::testing::SmallStep;

// An answer with fused backwards, and the graph with limits that its order
// needs if all is kept, times `share` of what is above static memory.
struct Answer {
  StageGraph limited{};
  MemorySchedule made{};
};
Answer FusedAnswer(const SmallStep& step, double share) {
  Answer answer;
  partition::StepMemory fused = step.memory;
  answer.made.forms = FormSelection(fused.pairs.size(), PassForm::kFused);
  fused.SetForms(answer.made.forms);
  answer.made.selection = fused.KeepEverything();
  const StageGraph graph =
      *partition::ApplyMemory(step.graph, fused, answer.made.selection);
  const FlatGraph flat(graph);
  ListScheduler scheduler(flat);
  scheduler.Run({});
  answer.made.found.schedule =
      *TimeSchedule(graph, OrdersOf(flat, scheduler.sequence()));
  IdVector<RankId, RankSpec> ranks = step.graph.ranks();
  for (const RankId r : ranks.ids()) {
    const Bytes fixed = ranks[r].memory.static_bytes();
    const double above = static_cast<double>(
        (answer.made.found.schedule.peak[r] - fixed).count());
    ranks[r].memory.limit = fixed + Bytes(static_cast<int64_t>(share * above));
  }
  answer.limited = step.graph.WithRanks(ranks);
  return answer;
}

// Whatever it finds is shorter, legal, and as fast as it says.
TEST(GradientRefinerTest, AnswersAreLegalAndShorterOneAfterTheOther) {
  int anew = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const SmallStep step = MakeSmallStep(seed, 4, true, /*waits=*/true);
    for (const double share : {0.7, 1.0, 1.5}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << share);
      const Answer answer = FusedAnswer(step, share);
      const SearchBudget budget;
      const int64_t was = answer.made.found.schedule.step_time().count();
      GradientRefiner refiner(answer.limited, step.memory, answer.made, was,
                              budget);
      ASSERT_THAT(refiner.RunAnew(), IsOk());
      if (share >= 1) {
        ASSERT_THAT(refiner.Run(), IsOk());
      }
      int64_t before = 0;
      for (const MemorySchedule& found : refiner.TakeAnswers()) {
        const int64_t time = found.found.schedule.step_time().count();
        EXPECT_LT(time, was);
        EXPECT_GT(time, before);
        before = time;
        partition::StepMemory forms = step.memory;
        forms.SetForms(found.forms);
        ASSERT_OK_AND_ASSIGN(
            const StageGraph graph,
            partition::ApplyMemory(answer.limited, forms, found.selection));
        ASSERT_OK_AND_ASSIGN(const StageGraph paired,
                             ApplyPairs(graph, found.pairs));
        EXPECT_THAT(ValidateSchedule(paired, found.found.schedule), IsOk());
        ++anew;
      }
    }
  }
  EXPECT_GT(anew, 20);
}

// Fewer rounds take less time and lose little.
TEST(GradientRefinerTest, FewRoundsFindAnAnswerThatIsLittleLonger) {
  double most = 0;
  double few_sum = 0;
  double many_sum = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const SmallStep step = MakeSmallStep(seed, 4, true, /*waits=*/true);
    const Answer answer = FusedAnswer(step, 0.7);
    const SearchBudget budget;
    const auto time_of = [&](const ChooseMemoryOptions& options) {
      GradientRefiner refiner(answer.limited, step.memory, answer.made,
                              kNoLimit, budget);
      EXPECT_THAT(refiner.RunAnew(std::nullopt, options), IsOk());
      const std::vector<MemorySchedule> answers = refiner.TakeAnswers();
      return answers.empty() ? 0.0
                             : ToSeconds(answers[0].found.schedule.step_time());
    };
    const double many = time_of({});
    const double few = time_of({.rounds = 2});
    EXPECT_EQ(few > 0, many > 0) << "whether an answer fits";
    if (many == 0) continue;
    most = std::max(most, few / many);
    few_sum += few;
    many_sum += many;
  }
  EXPECT_GT(many_sum, 0);
  EXPECT_LE(few_sum, 1.05 * many_sum);
  EXPECT_LE(most, 1.15);
  EXPECT_NE(few_sum, many_sum) << "rounds make no difference";
}

// Weight gradients of fused backwards take no time, so that an order may have
// them anywhere later. Split there, they would hold their memory until then.
TEST(GradientRefinerTest, WeightGradientsThatStandAtTheEndAreBroughtBack) {
  int found = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const SmallStep step = MakeSmallStep(seed, 4, true, /*waits=*/true);
    Answer answer = FusedAnswer(step, 1);
    const SearchBudget budget;
    const auto shortest = [&] {
      GradientRefiner refiner(answer.limited, step.memory, answer.made,
                              kNoLimit, budget);
      EXPECT_THAT(refiner.RunAnew(), IsOk());
      const std::vector<MemorySchedule> answers = refiner.TakeAnswers();
      return answers.empty() ? kNoLimit
                             : answers[0].found.schedule.step_time().count();
    };
    RankOrders& orders = answer.made.found.schedule.order;
    const auto is_weight_grad = [&](TaskId t) {
      return step.graph.task(t).pass == Pass::kWeightGrad;
    };
    // Directly behind their backwards.
    IdVector<TaskId, TaskId> own(step.graph.num_tasks());
    for (const partition::StagePair& pair : step.memory.pairs) {
      if (!pair.weight_grad.is_none()) own[pair.backward] = pair.weight_grad;
    }
    for (std::vector<TaskId>& order : orders) {
      std::vector<TaskId> next;
      for (const TaskId t : order) {
        if (is_weight_grad(t)) continue;
        next.push_back(t);
        if (!own[t].is_none()) next.push_back(own[t]);
      }
      order = next;
    }
    const int64_t behind = shortest();
    for (std::vector<TaskId>& order : orders) {
      std::stable_partition(order.begin(), order.end(),
                            [&](TaskId t) { return !is_weight_grad(t); });
    }
    EXPECT_EQ(shortest(), behind);
    found += behind < kNoLimit;
  }
  EXPECT_GT(found, 5);
}

}  // namespace
}  // namespace pipeloom::planner
