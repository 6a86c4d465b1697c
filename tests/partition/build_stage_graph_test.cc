#include "partition/graph/build_stage_graph.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "partition/placement/placement.h"
#include "tests/partition/random_job.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomJob;
using ::pipeloom::testing::RandomMixedBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
const ModuleId kEncoder(0);
const ModuleId kBackbone(1);

// A whole problem: a job, its partition and one replica's microbatches.
struct Problem {
  JobSpec job{};
  Partition partition{};
  Microbatches microbatches{};
};

Problem Prepare(const JobSpec& job, const BatchMetadata& batch,
                bool separated) {
  Problem problem{.job = job};
  const emulator::StageCostModel costs(job);
  const auto partition =
      separated ? SeparatedPartition(job, costs, batch)
                : ConcatenatedPartition(job, 2, LayerWeight::kCount);
  PIPELOOM_CHECK(partition.ok());
  problem.partition = *partition;
  const auto step = PackStep(job, batch, 0);
  PIPELOOM_CHECK(step.ok());
  const auto microbatches = SplitMicrobatches(job, *step, 0, *partition);
  PIPELOOM_CHECK(microbatches.ok());
  problem.microbatches = *microbatches;
  return problem;
}

BatchMetadata ImageBatch(int32_t samples, int32_t images) {
  BatchMetadata batch;
  for (int32_t i = 0; i < samples; ++i) {
    batch.samples.push_back({.text_tokens = 1000,
                             .images = std::vector<ImageSize>(
                                 static_cast<size_t>(images), {224, 224})});
  }
  return batch;
}

// SmallVlmJob: encoder sub-microbatches of 4 images, modules apart.
Problem SmallProblem(std::vector<std::string> frozen = {},
                     const BatchMetadata& batch = ImageBatch(6, 10)) {
  JobSpec job = SmallVlmJob();
  job.training.frozen_modules = std::move(frozen);
  job.training.sub_microbatch_sizes = {{"encoder", 4}};
  return Prepare(job, batch, /*separated=*/true);
}

// Tasks by what they are.
using TaskKey = std::tuple<MicrobatchId, ModuleId, int32_t, StageId, Pass>;
std::map<TaskKey, TaskId> TasksByKey(const StageGraph& graph) {
  std::map<TaskKey, TaskId> tasks;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    const bool is_new =
        tasks
            .emplace(TaskKey(task.microbatch, task.module, task.sub_microbatch,
                             task.stage, task.pass),
                     t)
            .second;
    EXPECT_TRUE(is_new) << DescribeTask(graph, t);
  }
  return tasks;
}

bool HasEdge(const StageGraph& graph, TaskId from, TaskId to) {
  const auto incoming = graph.incoming(to);
  return std::any_of(incoming.begin(), incoming.end(),
                     [&](EdgeId e) { return graph.edge(e).from == from; });
}

// Which modules have a backward in a microbatch, by the definition: a chain of
// present modules from a trainable one leads here.
bool HasBackward(const JobSpec& job, const std::vector<bool>& present,
                 ModuleId m) {
  if (!present[static_cast<size_t>(m.value())]) return false;
  if (!job.IsFrozen(m)) return true;
  return std::any_of(job.model.edges.begin(), job.model.edges.end(),
                     [&](const ModuleEdge& edge) {
                       return edge.to == m &&
                              HasBackward(job, present, edge.from);
                     });
}

// Checks a graph against the rules of a step, stated over its tasks.
// `recomputed`: stages whose every layer is, or empty.
void ExpectFollowsTheRules(const Problem& p, const GraphOptions& options,
                           const IdVector<StageId, bool>& recomputed,
                           const BuiltGraph& built) {
  const emulator::StageCostModel costs(p.job);
  const StageGraph& graph = built.graph;
  const auto tasks = TasksByKey(graph);
  size_t expected_tasks = 0;
  Duration expected_time = kZero;
  Duration time = kZero;
  Flops flops;
  for (const Task& task : graph.tasks()) time += task.duration;

  for (int32_t mb = 0; mb < p.microbatches.num_microbatches; ++mb) {
    const MicrobatchId microbatch(mb);
    std::vector<bool> present;
    for (const ModuleId m : p.job.model.modules.ids()) {
      present.push_back(!p.microbatches.Of(microbatch, m).empty());
    }
    const auto find = [&](ModuleId m, int32_t sub, StageId s, Pass pass) {
      const auto it = tasks.find({microbatch, m, sub, s, pass});
      return it == tasks.end() ? TaskId() : it->second;
    };
    for (const ModuleId m : p.job.model.modules.ids()) {
      const std::vector<StageId> stages = p.partition.StagesOf(m);
      const bool backward = HasBackward(p.job, present, m);
      bool fed = false;
      for (const ModuleEdge& edge : p.job.model.edges) {
        fed |= edge.to == m && HasBackward(p.job, present, edge.from);
      }
      for (const SubMicrobatchId id : p.microbatches.Of(microbatch, m)) {
        const SubMicrobatch& sub = p.microbatches.sub_microbatches[id];
        for (size_t s = 0; s < stages.size(); ++s) {
          const bool input_grad = fed || (!p.job.IsFrozen(m) && s > 0);
          const emulator::StageCost cost =
              costs.Cost(p.partition.stages[stages[s]], sub.shape, input_grad);
          const bool recompute = !recomputed.empty() && recomputed[stages[s]] &&
                                 cost.forward > kZero;
          flops += cost.model_flops;
          expected_time += cost.forward;
          ++expected_tasks;
          const TaskId f = find(m, sub.index, stages[s], Pass::kForward);
          ASSERT_FALSE(f.is_none());
          if (s > 0) {
            EXPECT_TRUE(HasEdge(
                graph, find(m, sub.index, stages[s - 1], Pass::kForward), f));
          }
          const TaskId b = find(m, sub.index, stages[s], Pass::kBackward);
          ASSERT_EQ(!b.is_none(), backward);
          const TaskId w = find(m, sub.index, stages[s], Pass::kWeightGrad);
          ASSERT_EQ(!w.is_none(),
                    options.split_backward && backward && !p.job.IsFrozen(m));
          if (!backward) continue;
          ++expected_tasks;
          expected_time += cost.backward;
          EXPECT_EQ(graph.task(b).recomputes, recompute);
          if (recompute) expected_time += cost.forward;
          EXPECT_TRUE(HasEdge(graph, f, b));
          if (s + 1 < stages.size()) {
            EXPECT_TRUE(HasEdge(
                graph, find(m, sub.index, stages[s + 1], Pass::kBackward), b));
          }
          if (!p.job.IsFrozen(m)) expected_time += cost.weight_grad;
          if (!w.is_none()) {
            ++expected_tasks;
            EXPECT_TRUE(HasEdge(graph, b, w));
          }
        }
      }
    }
    // Joins: every pair of sub-microbatches, forward and mirrored.
    for (const ModuleEdge& edge : p.job.model.edges) {
      const StageId last = p.partition.StagesOf(edge.from).back();
      const StageId first = p.partition.StagesOf(edge.to).front();
      for (const SubMicrobatchId i : p.microbatches.Of(microbatch, edge.from)) {
        for (const SubMicrobatchId j : p.microbatches.Of(microbatch, edge.to)) {
          const int32_t from = p.microbatches.sub_microbatches[i].index;
          const int32_t to = p.microbatches.sub_microbatches[j].index;
          EXPECT_TRUE(HasEdge(graph,
                              find(edge.from, from, last, Pass::kForward),
                              find(edge.to, to, first, Pass::kForward)));
          if (HasBackward(p.job, present, edge.from)) {
            EXPECT_TRUE(HasEdge(graph,
                                find(edge.to, to, first, Pass::kBackward),
                                find(edge.from, from, last, Pass::kBackward)));
          }
        }
      }
    }
  }
  EXPECT_EQ(tasks.size(), expected_tasks);
  EXPECT_EQ(time, expected_time);
  EXPECT_EQ(built.model_flops, flops);

  // Boundary tensors go between stages, and are priced between ranks.
  for (const Dependency& edge : graph.edges()) {
    const bool in_stage =
        graph.task(edge.from).stage == graph.task(edge.to).stage;
    EXPECT_EQ(edge.payload == Bytes(0), in_stage);
    const RankId from = graph.task(edge.from).rank;
    const RankId to = graph.task(edge.to).rank;
    if (from == to) {
      EXPECT_EQ(edge.delay, kZero);
    } else {
      EXPECT_EQ(edge.delay, costs.TransferTime(from, to, edge.payload).time);
    }
  }
  // Memory: in any order that runs a task after what it needs, as ids are, a
  // rank never gives back more than it holds, and ends with nothing.
  for (const RankId r : graph.rank_ids()) {
    Bytes held;
    for (const TaskId t : graph.tasks_of(r)) {
      held += graph.task(t).alloc;
      held -= graph.task(t).free;
      ASSERT_GE(held, Bytes(0)) << DescribeTask(graph, t);
    }
    EXPECT_EQ(held, Bytes(0)) << "rank " << r.value();
  }
}

TEST(BuildStageGraphTest, FollowsTheRulesForRandomJobs) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const JobSpec job = RandomJob(seed);
    const Problem p = Prepare(
        job,
        RandomMixedBatch(seed, static_cast<int32_t>(random.Between(12, 40))),
        random.Below(2) == 0);
    const emulator::StageCostModel costs(job);
    GraphOptions options;
    options.split_backward = random.Below(2) == 0;
    IdVector<StageId, bool> recomputed;
    if (random.Below(2) == 0) {
      IdVector<StageId, MemoryChoice> choices;
      for (const Stage& stage : p.partition.stages) {
        recomputed.push_back(random.Below(2) == 0);
        choices.push_back(recomputed.items().back()
                              ? RecomputeWhole(stage.num_layers)
                              : MemoryChoice());
      }
      options.memory = PolicyByStage(choices, p.partition, p.microbatches);
    }
    const auto built =
        BuildStageGraph(costs, p.partition, p.microbatches, options);
    ASSERT_THAT(built.status(), IsOk()) << seed;
    ExpectFollowsTheRules(p, options, recomputed, *built);
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

// Forward, backward and weight-gradient tasks of a module.
std::array<int, 3> CountPasses(const StageGraph& graph, ModuleId module) {
  std::array<int, 3> counts = {0, 0, 0};
  for (const Task& task : graph.tasks()) {
    if (task.module == module) ++counts[static_cast<size_t>(task.pass)];
  }
  return counts;
}

struct FrozenCase {
  std::vector<std::string> frozen;
  bool encoder_backward, encoder_weights, backbone_backward, backbone_weights;
};

TEST(BuildStageGraphTest, FrozenModulesHaveOnlyThePassesOthersNeed) {
  const FrozenCase cases[] = {
      {{}, true, true, true, true},
      {{"encoder"}, false, false, true, true},
      {{"backbone"}, true, true, true, false},
      {{"encoder", "backbone"}, false, false, false, false},
  };
  for (const FrozenCase& c : cases) {
    const Problem p = SmallProblem(c.frozen);
    const emulator::StageCostModel costs(p.job);
    ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                         BuildStageGraph(costs, p.partition, p.microbatches,
                                         {.split_backward = true}));
    const auto encoder = CountPasses(built.graph, kEncoder);
    const auto backbone = CountPasses(built.graph, kBackbone);
    EXPECT_GT(encoder[0], 0);
    EXPECT_EQ(encoder[1], c.encoder_backward ? encoder[0] : 0);
    EXPECT_EQ(encoder[2], c.encoder_weights ? encoder[0] : 0);
    EXPECT_GT(backbone[0], 0);
    EXPECT_EQ(backbone[1], c.backbone_backward ? backbone[0] : 0);
    EXPECT_EQ(backbone[2], c.backbone_weights ? backbone[0] : 0);
  }
}

TEST(BuildStageGraphTest, AFrozenBackboneHasNoBackwardWhereNoImageFeedsIt) {
  BatchMetadata batch = ImageBatch(1, 4);
  batch.samples.push_back({.text_tokens = 2000});
  const Problem p = SmallProblem({"backbone"}, batch);
  const emulator::StageCostModel costs(p.job);
  ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                       BuildStageGraph(costs, p.partition, p.microbatches));
  for (const Task& task : built.graph.tasks()) {
    if (task.microbatch == MicrobatchId(1)) {
      EXPECT_EQ(task.module, kBackbone);
      EXPECT_EQ(task.pass, Pass::kForward);
      EXPECT_EQ(task.alloc, task.free) << "nothing is kept";
    }
  }
  EXPECT_GT(CountPasses(built.graph, kBackbone)[1], 0);
}

// With what its edges carry to other ranks, input and output: no more.
TEST(BuildStageGraphTest, AFrozenStageHoldsItsOutputOnceWhoeverTakesIt) {
  int sent = 0;
  int stayed = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    JobSpec job = RandomJob(seed);
    job.training.frozen_modules.clear();
    for (const ModuleSpec& module : job.model.modules) {
      job.training.frozen_modules.push_back(module.name);
    }
    const Problem p = Prepare(job, RandomMixedBatch(seed, 20), true);
    const emulator::StageCostModel costs(job);
    ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                         BuildStageGraph(costs, p.partition, p.microbatches));
    for (const StagePair& pair : built.pairs) {
      const Task& task = built.graph.task(pair.forward);
      const emulator::StageCost cost = costs.Cost(
          p.partition.stages[pair.stage],
          p.microbatches.sub_microbatches[pair.sub_microbatch].shape, false);
      Bytes crossing;
      for (const EdgeId e : built.graph.outgoing(pair.forward)) {
        crossing += built.graph.edge(e).payload;
      }
      EXPECT_EQ(task.alloc, task.free);
      // In its passes, or in the account of those who get it, once.
      const Bytes stays = cost.output - std::min(cost.output, crossing);
      EXPECT_EQ(task.alloc, cost.input + std::max(stays, cost.scratch.forward));
      EXPECT_GE(cost.scratch.forward, cost.output);
      if (crossing >= cost.output) {
        sent += cost.output > Bytes(0);
      } else {
        ++stayed;
      }
    }
  }
  EXPECT_GT(sent, 100);
  EXPECT_GT(stayed, 100);
}

TEST(BuildStageGraphTest, TextOnlyMicrobatchesStartWithTheBackbone) {
  BatchMetadata batch;
  for (int i = 0; i < 3; ++i) batch.samples.push_back({.text_tokens = 2000});
  const Problem p = SmallProblem({}, batch);
  const emulator::StageCostModel costs(p.job);
  ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                       BuildStageGraph(costs, p.partition, p.microbatches));
  EXPECT_EQ(CountPasses(built.graph, kEncoder)[0], 0);
  EXPECT_TRUE(built.graph.incoming(TaskId(0)).empty());
  EXPECT_EQ(
      built.graph.num_tasks(),
      3 * 2 * static_cast<int32_t>(p.partition.StagesOf(kBackbone).size()));
}

TEST(BuildStageGraphTest, TasksAreNumberedByMicrobatch) {
  const Problem p = SmallProblem();
  const emulator::StageCostModel costs(p.job);
  ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                       BuildStageGraph(costs, p.partition, p.microbatches));
  MicrobatchId last(0);
  for (const Task& task : built.graph.tasks()) {
    EXPECT_GE(task.microbatch, last);
    last = task.microbatch;
  }
  EXPECT_EQ(last.value(), p.microbatches.num_microbatches - 1);
}

TEST(BuildStageGraphTest, ABoundaryTensorCrossesOnceHoweverManyWaitForIt) {
  // Two backbone slices wait for each encoder slice.
  JobSpec job = SmallVlmJob();
  job.training.sub_microbatch_sizes = {{"encoder", 3}, {"backbone", 1}};
  BatchMetadata batch;
  for (int i = 0; i < 3; ++i) {
    batch.samples.push_back(
        {.text_tokens = 77, .images = std::vector<ImageSize>(5, {224, 224})});
  }
  const Problem p = Prepare(job, batch, /*separated=*/true);
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                       BuildStageGraph(costs, p.partition, p.microbatches));
  const StageId last = p.partition.StagesOf(kEncoder).back();
  const StageId first = p.partition.StagesOf(kBackbone).front();
  ASSERT_NE(p.partition.stages[last].rank, p.partition.stages[first].rank);
  int checked = 0;
  for (const TaskId t : built.graph.task_ids()) {
    const Task& task = built.graph.task(t);
    if (task.stage != last) continue;
    Bytes sent;
    int64_t rows = 0;
    const bool forward = task.pass == Pass::kForward;
    for (const EdgeId e :
         forward ? built.graph.outgoing(t) : built.graph.incoming(t)) {
      const Dependency& edge = built.graph.edge(e);
      const TaskId other = forward ? edge.to : edge.from;
      if (built.graph.task(other).stage != first) continue;
      sent += edge.payload;
      rows += edge.rows;
    }
    const SubMicrobatchId sub = p.microbatches.Of(
        task.microbatch, kEncoder)[static_cast<size_t>(task.sub_microbatch)];
    const emulator::StageCost cost =
        costs.Cost(p.partition.stages[last],
                   p.microbatches.sub_microbatches[sub].shape, true);
    EXPECT_EQ(sent, cost.output);
    EXPECT_EQ(rows, cost.output_rows);
    ++checked;
  }
  EXPECT_EQ(checked, 2 * 5) << "15 images in slices of 3, forward and back";
}

TEST(BuildStageGraphTest, RecomputingKeepsOnlyTheInputUntilBackward) {
  const Problem p = SmallProblem();
  const emulator::StageCostModel costs(p.job);
  GraphOptions keep{.split_backward = true};
  GraphOptions recompute = keep;
  IdVector<StageId, MemoryChoice> whole;
  for (const Stage& stage : p.partition.stages) {
    whole.push_back(RecomputeWhole(stage.num_layers));
  }
  recompute.memory = PolicyByStage(whole, p.partition, p.microbatches);
  ASSERT_OK_AND_ASSIGN(
      const BuiltGraph kept,
      BuildStageGraph(costs, p.partition, p.microbatches, keep));
  ASSERT_OK_AND_ASSIGN(
      const BuiltGraph again,
      BuildStageGraph(costs, p.partition, p.microbatches, recompute));
  ASSERT_EQ(kept.graph.num_tasks(), again.graph.num_tasks());
  EXPECT_EQ(kept.model_flops, again.model_flops);
  for (const TaskId t : kept.graph.task_ids()) {
    const Task& a = kept.graph.task(t);
    const Task& b = again.graph.task(t);
    if (a.pass == Pass::kForward) {
      EXPECT_LT(b.alloc, a.alloc);
      EXPECT_EQ(a.duration, b.duration);
    } else if (a.pass == Pass::kBackward) {
      EXPECT_GT(a.alloc, Bytes(0));
      EXPECT_GT(b.alloc, a.alloc);
      EXPECT_GT(b.duration, a.duration);
      EXPECT_TRUE(b.recomputes);
    }
  }
}

TEST(BuildStageGraphTest, SplittingTheBackwardMovesWorkButAddsNone) {
  const Problem p = SmallProblem();
  const emulator::StageCostModel costs(p.job);
  Duration times[2] = {kZero, kZero};
  for (const bool split : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                         BuildStageGraph(costs, p.partition, p.microbatches,
                                         {.split_backward = split}));
    for (const Task& task : built.graph.tasks()) times[split] += task.duration;
  }
  EXPECT_EQ(times[0], times[1]);
}

TEST(BuildStageGraphTest, RanksCarryTheirStagesStaticMemory) {
  const Problem p = SmallProblem();
  const emulator::StageCostModel costs(p.job);
  ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                       BuildStageGraph(costs, p.partition, p.microbatches));
  IdVector<RankId, RankMemory> expected(p.partition.num_ranks);
  for (const Stage& stage : p.partition.stages) {
    const emulator::StageMemory memory = costs.Memory(stage);
    expected[stage.rank].weights += memory.weights;
    expected[stage.rank].gradients += memory.gradients;
    expected[stage.rank].optimizer += memory.optimizer;
  }
  const auto updates = costs.Updates(p.partition);
  Duration optimizer = kZero;
  for (const RankId r : expected.ids()) {
    expected[r].limit = p.job.MemoryLimit();
    expected[r].overhead = costs.Overhead(p.partition, r).total();
    EXPECT_EQ(built.graph.rank(r).memory, expected[r]);
    // There is one replica, so that the slowest optimizer is all that shows.
    EXPECT_EQ(updates[r].total(), updates[r].optimizer);
    optimizer = std::max(optimizer, updates[r].optimizer);
    EXPECT_GT(built.graph.rank(r).memory.weights, Bytes(0));
  }
  for (const RankSpec& rank : built.graph.ranks()) {
    EXPECT_EQ(rank.epilogue, optimizer);
  }
}

TEST(BuildStageGraphTest, AnyNumberOfMicrobatchesIsLegal) {
  for (const int32_t samples : {1, 2, 3, 7, 13}) {
    JobSpec job = SmallVlmJob();
    job.training.microbatches = samples;
    job.training.microbatch_tokens = 1100;
    const Problem p =
        Prepare(job, ImageBatch(samples, 1), /*separated=*/samples % 2 == 0);
    ASSERT_EQ(p.microbatches.num_microbatches, samples);
    const emulator::StageCostModel costs(job);
    ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                         BuildStageGraph(costs, p.partition, p.microbatches));
    ExpectFollowsTheRules(p, {}, {}, built);
  }
}

TEST(BuildStageGraphTest, BuildsAHundredThousandTasks) {
  JobSpec job = SmallVlmJob();
  job.training.microbatches = 3000;
  job.training.microbatch_tokens = 1100;
  job.training.sub_microbatch_sizes = {{"encoder", 1}};
  const Problem p = Prepare(job, ImageBatch(3000, 4), /*separated=*/true);
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const BuiltGraph built,
                       BuildStageGraph(costs, p.partition, p.microbatches,
                                       {.split_backward = true}));
  EXPECT_GT(built.graph.num_tasks(), 100'000);
}

TEST(BuildStageGraphTest, RefusesPartsThatDoNotFitTogether) {
  const Problem p = SmallProblem();
  const emulator::StageCostModel costs(p.job);
  Partition other = p.partition;
  other.num_ranks = 5;
  EXPECT_THAT(BuildStageGraph(costs, other, p.microbatches).status(),
              FailsWith(kInvalid, HasSubstr("num_ranks is 5")));
  EXPECT_THAT(BuildStageGraph(costs, Partition{}, p.microbatches).status(),
              FailsWith(kInvalid, HasSubstr("partition")));
  GraphOptions options;
  options.memory.choices.push_back(RecomputeUniform(1));
  options.memory.choice_of.push_back(0);
  EXPECT_THAT(
      BuildStageGraph(costs, p.partition, p.microbatches, options).status(),
      FailsWith(kInvalid, HasSubstr("memory policy has 1 stage pairs")));
  Microbatches broken = p.microbatches;
  broken.num_microbatches = 0;
  EXPECT_THAT(BuildStageGraph(costs, p.partition, broken).status(),
              FailsWith(kInvalid, HasSubstr("microbatch")));
}

}  // namespace
}  // namespace pipeloom::partition
