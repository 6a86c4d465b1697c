// Effects of a cluster file's domains, cards, devices by node and slow GPUs on
// the prices of a replica's ranks, compared with MixRanks, which puts whole
// graphs together, and with closed forms.
#include "emulator/stage/cluster_view.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "emulator/step/step_program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/graph/build_stage_graph.h"
#include "tests/emulator/helpers.h"
#include "tests/emulator/mixed_ranks.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

DeviceSpec SlowerDevice() {
  DeviceSpec device = H800Cluster().device;
  device.name = "slower";
  device.bf16.flops_per_second /= 3;
  device.memory_bandwidth.bytes_per_second /= 2;
  device.memory = device.memory * 2;
  return device;
}

// A node a rank: ranks 0 to 3, twice.
JobSpec FourRanks() {
  JobSpec job = JobOf({std::vector<LayerSpec>(8, Llama3Block())},
                      {.tp = 8, .pp = 4, .dp = 2});
  job.training.microbatches = 4;
  job.training.microbatch_tokens = 4096;
  return job;
}

// Two layers a rank, four microbatches.
Partition FourStages() {
  Partition partition{.num_ranks = 4, .num_segments = 1};
  for (int32_t r = 0; r < 4; ++r) {
    partition.stages.push_back({.module = ModuleId(0),
                                .first_layer = LayerId(2 * r),
                                .num_layers = 2,
                                .rank = RankId(r),
                                .segment = SegmentId(0)});
  }
  partition.sub_microbatch_instances = {0};
  return partition;
}

// Returns the graph without epilogues, in which ranks wait for each other.
StageGraph WithoutEpilogues(const StageGraph& graph) {
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (RankSpec& rank : ranks) rank.epilogue = kZero;
  return graph.WithRanks(ranks);
}

StageGraph GraphOf(const StageCostModel& costs) {
  const Partition partition = FourStages();
  Microbatches microbatches{.num_microbatches = 4};
  for (int32_t m = 0; m < 4; ++m) {
    microbatches.sub_microbatches.push_back({.module = ModuleId(0),
                                             .microbatch = MicrobatchId(m),
                                             .shape = Sequences(2, 1024 + m)});
    microbatches.samples.push_back({});
  }
  auto built = partition::BuildStageGraph(costs, partition, microbatches, {});
  EXPECT_THAT(built, IsOk());
  return built.ok() ? built->graph : StageGraph();
}

TEST(ClusterView, DevicesByNodeGiveTheGraphThatMixRanksPutsTogether) {
  const JobSpec plain = FourRanks();
  for (const std::optional<Precision> precision :
       {std::optional<Precision>(), std::optional(Precision::kFp8)}) {
    JobSpec mixed = plain;
    // Nodes 2 and 3 of every four: ranks 2 and 3 of both replicas.
    mixed.cluster.node_groups = {{.first_node = 2,
                                  .num_nodes = 2,
                                  .every = 4,
                                  .device = SlowerDevice(),
                                  .precision = precision}};
    ASSERT_THAT(ValidateJobSpec(mixed), IsOk());
    JobSpec other = plain;
    other.cluster.device = SlowerDevice();
    if (precision) other.model.modules[ModuleId(0)].precision = *precision;
    const StageCostModel plain_costs(plain);
    const StageCostModel other_costs(other);
    const StageGraph kind0 = GraphOf(plain_costs);
    const StageGraph kind1 = GraphOf(other_costs);
    ASSERT_OK_AND_ASSIGN(const StageGraph expected,
                         MixRanks({&kind0, &kind1}, {0, 0, 1, 1}));
    for (const PriceReuse reuse : {PriceReuse::kOn, PriceReuse::kOff}) {
      const StageCostModel costs(mixed, reuse);
      EXPECT_EQ(WithoutEpilogues(GraphOf(costs)), WithoutEpilogues(expected));
      const auto updates = costs.Updates(FourStages());
      for (const RankId r : updates.ids()) {
        EXPECT_EQ(updates[r], (r < RankId(2) ? plain_costs : other_costs)
                                  .Updates(FourStages())[r]);
      }
      EXPECT_EQ(&costs.ForReplica(0), &costs.ForReplica(1));
      EXPECT_EQ(costs.MemoryLimit(RankId(3)),
                mixed.MemoryLimit(SlowerDevice()));
      EXPECT_DOUBLE_EQ(costs.PeakFlopsPerSecond(),
                       16 * plain.cluster.device.bf16.flops_per_second * 4 / 3);
    }
  }
}

TEST(ClusterView, ReplicasOnOtherNodesHaveOtherViewsAndEqualOnesShareOne) {
  JobSpec job = FourRanks();
  job.cluster.node_groups = {
      {.first_node = 4, .num_nodes = 4, .device = SlowerDevice()}};
  const ClusterViews views = ViewsOf(job);
  EXPECT_THAT(views.of_replica, ElementsAre(0, 1));
  const StageCostModel costs(job);
  JobSpec other = FourRanks();
  other.cluster.device = SlowerDevice();
  EXPECT_EQ(GraphOf(costs.ForReplica(0)), GraphOf(StageCostModel(FourRanks())));
  EXPECT_EQ(GraphOf(costs.ForReplica(1)), GraphOf(StageCostModel(other)));
  // Nothing special: one view for all.
  EXPECT_EQ(ViewsOf(FourRanks()).views.size(), 1u);
}

TEST(ClusterView, ASlowGpuSlowsItsRankInItsReplicaAlone) {
  const StageGraph plain = GraphOf(StageCostModel(FourRanks()));
  JobSpec job = FourRanks();
  // GPU 3 of node 5: rank 1 of replica 1. Another of that node is less slow.
  job.cluster.slow_gpus = {{5 * 8 + 3, 1.5}, {5 * 8 + 4, 1.25}};
  const StageCostModel costs(job);
  const StageGraph usual = GraphOf(costs.ForReplica(0));
  const StageGraph slow = GraphOf(costs.ForReplica(1));
  EXPECT_EQ(usual, plain);
  for (const TaskId t : plain.task_ids()) {
    const double factor = plain.task(t).rank == RankId(1) ? 1.5 : 1;
    EXPECT_NEAR(ToSeconds(slow.task(t).duration),
                ToSeconds(plain.task(t).duration) * factor, 4e-9);
  }
  EXPECT_GT(slow.rank(RankId(1)).epilogue, plain.rank(RankId(1)).epilogue);
  EXPECT_EQ(slow.rank(RankId(2)).memory, plain.rank(RankId(2)).memory);
  const auto updates = costs.ForReplica(1).Updates(FourStages());
  const auto fast = costs.ForReplica(0).Updates(FourStages());
  EXPECT_GT(updates[RankId(1)].optimizer, fast[RankId(1)].optimizer);
  EXPECT_EQ(updates[RankId(1)].reduce, fast[RankId(1)].reduce);
  EXPECT_EQ(updates[RankId(2)], fast[RankId(2)]);
}

TEST(ClusterView, ASlowLinkSlowsTheReductionsWhoseRingsPassIt) {
  const auto plain = StageCostModel(FourRanks()).Updates(FourStages());
  JobSpec job = FourRanks();
  // Rank 1 of both replicas: nodes 1 and 5.
  for (const auto& [from, to] : {std::pair(1, 5), std::pair(5, 1)}) {
    job.cluster.slow_links = {{from, to, 3}};
    const StageCostModel costs(job);
    for (int32_t replica = 0; replica < 2; ++replica) {
      const auto slow = costs.ForReplica(replica).Updates(FourStages());
      for (const RankId r : plain.ids()) {
        const double factor = r == RankId(1) ? 3 : 1;
        EXPECT_NEAR(ToSeconds(slow[r].reduce),
                    factor * ToSeconds(plain[r].reduce), 2e-9);
        EXPECT_NEAR(ToSeconds(slow[r].gather),
                    factor * ToSeconds(plain[r].gather), 2e-9);
        EXPECT_EQ(slow[r].optimizer, plain[r].optimizer);
      }
    }
  }
  // No ring over replicas joins the nodes of two ranks.
  job.cluster.slow_links = {{1, 2, 3}};
  EXPECT_EQ(StageCostModel(job).Updates(FourStages()), plain);
}

TEST(ClusterView, SlowLinksAndSharedCardsStretchTransfersBetweenNodes) {
  JobSpec job = FourRanks();
  const Bytes payload(64 << 20);
  const auto transfer = [&](int32_t replica, int32_t from, int32_t to) {
    const StageCostModel costs(job);
    return costs.ForReplica(replica).TransferTime(RankId(from), RankId(to),
                                                  payload);
  };
  const auto plain = transfer(0, 0, 1);
  job.cluster.slow_links = {{0, 1, 2}, {0, 1, 1.5}};
  EXPECT_NEAR(ToSeconds(transfer(0, 0, 1).occupancy),
              3 * ToSeconds(plain.occupancy), 1e-9);
  EXPECT_NEAR(ToSeconds(transfer(0, 0, 1).time), 3 * ToSeconds(plain.time),
              2e-9);
  EXPECT_EQ(transfer(0, 1, 0).time, plain.time);
  EXPECT_EQ(transfer(1, 0, 1).time, plain.time);
  // All 8 GPUs of the rank send at once, four to a card.
  job.cluster.slow_links.clear();
  job.cluster.nics_per_node = 2;
  EXPECT_EQ(transfer(0, 0, 1).occupancy, 4 * plain.occupancy);
  // A rank of one GPU has a card for itself until another of its node sends.
  job.parallel = {.tp = 1, .pp = 16, .dp = 1};
  EXPECT_EQ(transfer(0, 7, 8).occupancy, plain.occupancy);
  EXPECT_EQ(SharedLinksOf(job).sharing, LinkSharing::kPerPair);
  job.cluster.nic_sharing = NicSharing::kFair;
  const SharedLinks links = SharedLinksOf(job);
  EXPECT_EQ(links.sharing, LinkSharing::kFairNic);
  EXPECT_THAT(links.nic_of_rank, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1,  //
                                             2, 2, 2, 2, 3, 3, 3, 3));
  EXPECT_THAT(links.node_of_rank, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0,  //
                                              1, 1, 1, 1, 1, 1, 1, 1));
}

TEST(ClusterView, DomainsJoinWhatTheirKindSays) {
  ClusterSpec cluster = H800Cluster();  // 8 nodes of 8.
  EXPECT_TRUE(cluster.Joined(0, 7));
  EXPECT_FALSE(cluster.Joined(7, 8));
  EXPECT_FALSE(cluster.JoinsGroup(16));
  cluster.domain = {.kind = DomainKind::kSwitch, .gpus = 32};
  EXPECT_TRUE(cluster.Joined(0, 31));
  EXPECT_FALSE(cluster.Joined(31, 32));
  EXPECT_TRUE(cluster.JoinsGroup(32));
  EXPECT_FALSE(cluster.JoinsGroup(64));
  cluster.domain = {.kind = DomainKind::kCube, .gpus = 16};
  EXPECT_TRUE(cluster.Joined(0, 15));
  EXPECT_FALSE(cluster.Joined(15, 16));
  EXPECT_TRUE(cluster.JoinsGroup(48)) << "three whole cubes";
  EXPECT_FALSE(cluster.JoinsGroup(24));
  cluster.domain = {.kind = DomainKind::kHopRing, .hops = 2};
  EXPECT_TRUE(cluster.Joined(0, 23));
  EXPECT_FALSE(cluster.Joined(0, 24));
  EXPECT_TRUE(cluster.Joined(0, 48)) << "the ring closes";
  EXPECT_TRUE(cluster.JoinsGroup(64));
}

TEST(ClusterView, AWiderDomainMakesTensorParallelismOverNodesCheap) {
  JobSpec job = FourRanks();
  job.parallel = {.tp = 16, .pp = 2, .dp = 2};
  const Stage stage{.module = ModuleId(0),
                    .first_layer = LayerId(0),
                    .num_layers = 2,
                    .rank = RankId(0)};
  const auto forward = [&] {
    return StageCostModel(job).Cost(stage, Sequences(2, 1024), true).forward;
  };
  const Duration over_nics = forward();
  job.cluster.domain = {.kind = DomainKind::kSwitch, .gpus = 32};
  const Duration inside = forward();
  EXPECT_LT(inside, over_nics);
  // Cards are of no concern inside; outside, shared ones cost.
  job.cluster.nics_per_node = 4;
  EXPECT_EQ(forward(), inside);
  job.cluster.domain = {};
  EXPECT_GT(forward(), over_nics);
}

TEST(ClusterView, RingNeighboursDoNotUseTheirCards) {
  JobSpec job = FourRanks();
  job.cluster.nic_sharing = NicSharing::kInTurn;
  job.cluster.domain = {.kind = DomainKind::kHopRing, .hops = 1};
  const StageGraph graph = GraphOf(StageCostModel(job));
  const ExecutionPlan plan = LowerNaively(graph, OneFOneBOrders(graph));
  ASSERT_OK_AND_ASSIGN(const StepTrace on_ring,
                       EmulateStep(plan, {.links = SharedLinksOf(job)}));
  ASSERT_OK_AND_ASSIGN(
      const StepTrace alone,
      EmulateStep(plan, {.links = SharedLinks{.sharing = LinkSharing::kNone}}));
  EXPECT_EQ(on_ring.finish, alone.finish);
}

TEST(ClusterView, FaultsAreNamed) {
  struct Case {
    const char* message;
    std::function<void(JobSpec&)> break_it;
  };
  const NodeGroup group{
      .first_node = 0, .num_nodes = 2, .device = SlowerDevice()};
  const Case cases[] = {
      {"domain.gpus is 12; it must be a multiple of gpus_per_node, 8",
       [](JobSpec& j) {
         j.cluster.domain = {DomainKind::kSwitch, 12, 0};
       }},
      {"domain.gpus is 8; it must be 0 unless the domain is a switch or a cube",
       [](JobSpec& j) {
         j.cluster.domain = {DomainKind::kNode, 8, 0};
       }},
      {"domain.hops is 0; it must be at least 1",
       [](JobSpec& j) {
         j.cluster.domain = {DomainKind::kHopRing, 0, 0};
       }},
      {"nics_per_node is 3; it must be 0 or a divisor of gpus_per_node, 8",
       [](JobSpec& j) { j.cluster.nics_per_node = 3; }},
      {"node_groups[0].first_node is 7; it must be such that its 2 nodes",
       [&](JobSpec& j) {
         j.cluster.node_groups = {group};
         j.cluster.node_groups[0].first_node = 7;
       }},
      {"node_groups[1].first_node is 1; it must be elsewhere: node 1 is in two",
       [&](JobSpec& j) {
         j.cluster.node_groups = {group, group};
         j.cluster.node_groups[1].first_node = 1;
       }},
      {"node_groups[0].device.memory is 0; it must be > 0",
       [&](JobSpec& j) {
         j.cluster.node_groups = {group};
         j.cluster.node_groups[0].device.memory = Bytes(0);
       }},
      {"slow_gpus[0].gpu is 64; it must be in [0, 64)",
       [](JobSpec& j) {
         j.cluster.slow_gpus = {{64, 1.5}};
       }},
      {"slow_gpus[0].factor is 0.5; it must be in [1, 1e6]",
       [](JobSpec& j) {
         j.cluster.slow_gpus = {{0, 0.5}};
       }},
      {"slow_links[0].to_node is 8; it must be in [0, 8)",
       [](JobSpec& j) {
         j.cluster.slow_links = {{0, 8, 1.5}};
       }},
      {"jitter.links is 2; it must be in [0, 1]",
       [](JobSpec& j) { j.cluster.jitter.links = 2; }},
      {"rank 0 of replica 0 is on nodes 0 to 1, which are of different groups",
       [&](JobSpec& j) {
         j.parallel = {.tp = 16, .pp = 2, .dp = 2};
         j.cluster.node_groups = {group};
         j.cluster.node_groups[0].first_node = 1;
       }},
  };
  for (const Case& c : cases) {
    JobSpec job = FourRanks();
    ASSERT_THAT(ValidateJobSpec(job), IsOk());
    c.break_it(job);
    EXPECT_THAT(
        ValidateJobSpec(job),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

// Tasks, dependencies and ranks are the same by whatever model they are
// priced; only times differ.
TEST(ClusterView, TheStructureOfAStepDoesNotDependOnTheCostSource) {
  class Odd : public OpCostModel {
   public:
    explicit Odd(int64_t seed) : seed_(seed) {}
    Duration Cost(const Op& op) const override {
      return Duration(1 + (static_cast<int64_t>(op.index()) * 7919 + seed_) %
                              100'003);
    }

   private:
    int64_t seed_;
  };
  const JobSpec job = FourRanks();
  const StageGraph base = GraphOf(StageCostModel(job));
  const ExecutionPlan base_plan = LowerNaively(base, OneFOneBOrders(base));
  ASSERT_OK_AND_ASSIGN(const StepProgram base_program,
                       CompileStep(base_plan, {}));
  for (int64_t seed = 0; seed < 50; ++seed) {
    const StageGraph graph =
        GraphOf(StageCostModel(job, std::make_unique<Odd>(seed * seed)));
    SCOPED_TRACE(seed);
    ASSERT_EQ(graph.num_tasks(), base.num_tasks());
    ASSERT_EQ(graph.num_edges(), base.num_edges());
    for (const TaskId t : graph.task_ids()) {
      Task expected = base.task(t);
      expected.duration = graph.task(t).duration;
      EXPECT_EQ(graph.task(t), expected);
    }
    for (const EdgeId e : graph.edge_ids()) {
      EXPECT_EQ(graph.edge(e), base.edge(e));
    }
    const ExecutionPlan plan = LowerNaively(graph, OneFOneBOrders(graph));
    EXPECT_EQ(plan.programs, base_plan.programs);
    ASSERT_OK_AND_ASSIGN(const StepProgram program, CompileStep(plan, {}));
    EXPECT_EQ(program.op_begin, base_program.op_begin);
    EXPECT_EQ(program.task_of_slot, base_program.task_of_slot);
    EXPECT_EQ(program.num_links, base_program.num_links);
    ASSERT_EQ(program.ops.size(), base_program.ops.size());
    for (size_t i = 0; i < program.ops.size(); ++i) {
      EXPECT_EQ(program.ops[i].code, base_program.ops[i].code);
      EXPECT_EQ(program.ops[i].index, base_program.ops[i].index);
    }
  }
}

}  // namespace
}  // namespace pipeloom::emulator
