#include "tests/support/random_plan.h"

#include "base/random.h"
#include "tests/support/random_problem.h"

namespace pipeloom::testing {

ExecutionPlan RandomPlan(uint64_t seed) {
  Random random(seed);
  ExecutionPlan plan;
  plan.job = "random";
  plan.step = random.Below(1000);
  plan.replica = static_cast<int32_t>(random.Below(8));
  plan.schedule = "shuffled";
  plan.graph = RandomGraph(seed, {.with_epilogues = true});
  plan.predicted_step_time = Nanoseconds(random.Below(1'000'000));
  plan.lower_bound = Nanoseconds(random.Below(1'000'000));
  plan.model_flops = Flops{random.Unit() * 1e18};
  plan.peak_flops_per_second = random.Unit() * 1e15;
  Random loss(seed + 1);  // Separate, so that later draws do not change.
  for (int64_t i = loss.Below(4); i > 0; --i) {
    plan.loss_totals.push_back({.module = ModuleId(0),
                                .tokens = loss.Below(1'000'000),
                                .instances = loss.Below(1000)});
    plan.loss_shares.push_back(
        {.module = ModuleId(0),
         .microbatch = MicrobatchId(static_cast<int32_t>(loss.Below(16))),
         .sub_microbatch = static_cast<int32_t>(loss.Below(4)),
         .tokens = loss.Below(10'000),
         .instances = loss.Below(10)});
  }
  for (int64_t i = loss.Below(3); i > 0; --i) {
    plan.padded_shapes.push_back(
        {.module = ModuleId(0),
         .microbatch = MicrobatchId(static_cast<int32_t>(loss.Below(16))),
         .sub_microbatch = static_cast<int32_t>(loss.Below(4)),
         .tokens = loss.Below(10'000),
         .bucket = loss.Below(20'000)});
  }
  if (seed % 3 == 0) {
    plan.links.sharing = static_cast<LinkSharing>(loss.Below(6));
    plan.links.blocking_sends = loss.Below(2) == 0;
    plan.links.host_bandwidth = {static_cast<double>(loss.Below(1 << 20))};
    plan.links.ring_hops = static_cast<int32_t>(loss.Below(3));
    plan.links.ring_nodes = static_cast<int32_t>(loss.Below(9));
    for (auto* by_rank : {&plan.links.nic_of_rank, &plan.links.node_of_rank,
                          &plan.links.host_link_of_rank}) {
      if (loss.Below(2) == 0) continue;
      for (int32_t r = 0; r < plan.graph.num_ranks(); ++r) {
        by_rank->push_back(static_cast<int32_t>(loss.Below(8)));
      }
    }
  }
  for (const RankId r : plan.graph.rank_ids()) {
    std::vector<Instruction> program;
    for (const TaskId t : plan.graph.tasks_of(r)) {
      for (const EdgeId e : plan.graph.incoming(t)) {
        program.push_back(Recv{e});
        program.push_back(WaitRecv{e});
      }
      program.push_back(Compute{t});
      for (const EdgeId e : plan.graph.outgoing(t)) {
        program.push_back(Send{e});
        program.push_back(WaitSend{e});
        program.push_back(Free{e});
      }
      program.push_back(Offload{t, Bytes(random.Below(100))});
      program.push_back(Fetch{t, Bytes(random.Below(100))});
    }
    program.push_back(ReduceGradients{});
    program.push_back(OptimizerStep{});
    plan.programs.push_back(program);
  }
  return plan;
}

}  // namespace pipeloom::testing
