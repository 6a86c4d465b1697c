#include "ir/plan/execution_plan.h"

#include "absl/strings/str_format.h"
#include "base/overloaded.h"

namespace pipeloom {
namespace {

void AddMemory(const RankMemory& memory, FingerprintBuilder& builder) {
  builder.Add(memory.limit.count())
      .Add(memory.weights.count())
      .Add(memory.gradients.count())
      .Add(memory.optimizer.count())
      .Add(memory.overhead.count());
}

void AddGraph(const StageGraph& graph, FingerprintBuilder& builder) {
  builder.Add(graph.name());
  builder.Add(graph.num_ranks());
  for (const RankSpec& rank : graph.ranks()) {
    AddMemory(rank.memory, builder);
    builder.Add(rank.epilogue.count());
  }
  builder.Add(graph.module_names().size());
  for (const std::string& name : graph.module_names()) builder.Add(name);
  builder.Add(graph.num_tasks());
  for (const Task& task : graph.tasks()) {
    builder.Add(task.rank.value())
        .Add(task.pass)
        .Add(task.module.value())
        .Add(task.stage.value())
        .Add(task.microbatch.value())
        .Add(task.sub_microbatch)
        .Add(task.duration.count())
        .Add(task.alloc.count())
        .Add(task.free.count())
        .Add(task.recomputes)
        .Add(task.overlaps.value());
  }
  builder.Add(graph.num_edges());
  for (const Dependency& edge : graph.edges()) {
    builder.Add(edge.from.value())
        .Add(edge.to.value())
        .Add(edge.delay.count())
        .Add(edge.occupancy.count())
        .Add(edge.payload.count())
        .Add(edge.rows)
        .Add(edge.width);
  }
}

void AddInstruction(const Instruction& instruction,
                    FingerprintBuilder& builder) {
  builder.Add(instruction.index());
  std::visit(Overloaded{
                 [&](const Compute& i) { builder.Add(i.task.value()); },
                 [&](const Send& i) { builder.Add(i.edge.value()); },
                 [&](const Recv& i) { builder.Add(i.edge.value()); },
                 [&](const WaitRecv& i) { builder.Add(i.edge.value()); },
                 [&](const WaitSend& i) { builder.Add(i.edge.value()); },
                 [&](const Free& i) { builder.Add(i.edge.value()); },
                 [&](const Offload& i) {
                   builder.Add(i.task.value()).Add(i.payload.count());
                 },
                 [&](const Fetch& i) {
                   builder.Add(i.task.value()).Add(i.payload.count());
                 },
                 [&](const ReduceGradients&) {},
                 [&](const OptimizerStep&) {},
             },
             instruction);
}

void AddLinks(const SharedLinks& links, FingerprintBuilder& builder) {
  builder.Add(static_cast<int32_t>(links.sharing))
      .Add(links.blocking_sends)
      .Add(links.host_bandwidth.bytes_per_second)
      .Add(links.ring_hops)
      .Add(links.ring_nodes);
  for (const auto* by_rank :
       {&links.nic_of_rank, &links.node_of_rank, &links.host_link_of_rank}) {
    builder.Add(by_rank->size());
    for (const int32_t value : *by_rank) builder.Add(value);
  }
}

}  // namespace

BoundaryBytes BoundaryOf(const StageGraph& graph, TaskId task) {
  BoundaryBytes bytes;
  for (const EdgeId e : graph.outgoing(task)) {
    bytes.made += graph.edge(e).payload;
  }
  for (const EdgeId e : graph.incoming(task)) {
    const Dependency& d = graph.edge(e);
    if (graph.task(d.from).rank == graph.task(task).rank) {
      bytes.taken += d.payload;
    }
  }
  return bytes;
}

std::string DescribeInstruction(const Instruction& instruction) {
  const auto named = [](const char* verb, const char* noun, int32_t id) {
    return absl::StrFormat("%s %s %d", verb, noun, id);
  };
  return std::visit(
      Overloaded{
          [&](const Compute& i) {
            return named("compute", "task", i.task.value());
          },
          [&](const Send& i) { return named("send", "edge", i.edge.value()); },
          [&](const Recv& i) { return named("recv", "edge", i.edge.value()); },
          [&](const WaitRecv& i) {
            return named("wait_recv", "edge", i.edge.value());
          },
          [&](const WaitSend& i) {
            return named("wait_send", "edge", i.edge.value());
          },
          [&](const Free& i) { return named("free", "edge", i.edge.value()); },
          [&](const Offload& i) {
            return named("offload", "task", i.task.value());
          },
          [&](const Fetch& i) {
            return named("fetch", "task", i.task.value());
          },
          [&](const ReduceGradients&) {
            return std::string("reduce_gradients");
          },
          [&](const OptimizerStep&) { return std::string("optimizer_step"); },
      },
      instruction);
}

Fingerprint Checksum(const ExecutionPlan& plan) {
  FingerprintBuilder builder;
  builder.Add(ExecutionPlan::kVersion)
      .Add(plan.job)
      .Add(plan.step)
      .Add(plan.replica)
      .Add(plan.schedule);
  AddGraph(plan.graph, builder);
  builder.Add(plan.programs.size());
  for (const std::vector<Instruction>& program : plan.programs) {
    builder.Add(program.size());
    for (const Instruction& i : program) AddInstruction(i, builder);
  }
  builder.Add(plan.predicted_step_time.count())
      .Add(plan.lower_bound.count())
      .Add(plan.model_flops.count)
      .Add(plan.peak_flops_per_second);
  if (!plan.loss_shares.empty() || !plan.loss_totals.empty()) {
    builder.Add(plan.loss_shares.size());
    for (const LossShare& share : plan.loss_shares) {
      builder.Add(share.module.value())
          .Add(share.microbatch.value())
          .Add(share.sub_microbatch)
          .Add(share.tokens)
          .Add(share.instances);
    }
    builder.Add(plan.loss_totals.size());
    for (const LossTotal& total : plan.loss_totals) {
      builder.Add(total.module.value()).Add(total.tokens).Add(total.instances);
    }
  }
  // Plans without shared links keep the checksum that they had before.
  if (plan.links != SharedLinks{}) AddLinks(plan.links, builder);
  for (const PaddedShape& shape : plan.padded_shapes) {
    builder.Add(shape.module.value())
        .Add(shape.microbatch.value())
        .Add(shape.sub_microbatch)
        .Add(shape.tokens)
        .Add(shape.bucket);
  }
  return builder.Build();
}

double Mfu(const ExecutionPlan& plan, Duration step_time) {
  if (step_time <= kZero || !(plan.peak_flops_per_second > 0)) return 0;
  return plan.model_flops.count /
         (plan.peak_flops_per_second * ToSeconds(step_time));
}

}  // namespace pipeloom
