#include "proto/convert/plan_proto.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/overloaded.h"
#include "base/status_macros.h"
#include "proto/convert/stage_graph_proto.h"

namespace pipeloom::convert {
namespace {

constexpr char kFormat[] = "pipeloom.plan";

void SetInstruction(const Instruction& from, v1::Instruction* to) {
  std::visit(
      Overloaded{
          [&](const Compute& i) { to->set_compute(i.task.value()); },
          [&](const Send& i) { to->set_send(i.edge.value()); },
          [&](const Recv& i) { to->set_recv(i.edge.value()); },
          [&](const WaitRecv& i) { to->set_wait_recv(i.edge.value()); },
          [&](const WaitSend& i) { to->set_wait_send(i.edge.value()); },
          [&](const Free& i) { to->set_free(i.edge.value()); },
          [&](const Offload& i) {
            to->mutable_offload()->set_task(i.task.value());
            to->mutable_offload()->set_payload_bytes(i.payload.count());
          },
          [&](const Fetch& i) {
            to->mutable_fetch()->set_task(i.task.value());
            to->mutable_fetch()->set_payload_bytes(i.payload.count());
          },
          [&](const ReduceGradients&) { to->mutable_reduce_gradients(); },
          [&](const OptimizerStep&) { to->mutable_optimizer_step(); },
      },
      from);
}

// A converter of instructions that checks that the tasks and edges they name
// are in the graph.
class InstructionReader {
 public:
  explicit InstructionReader(const StageGraph& graph) : graph_(graph) {}

  absl::StatusOr<Instruction> Read(const v1::Instruction& i) const {
    switch (i.instruction_case()) {
      case v1::Instruction::kCompute:
        return Checked(Compute{TaskId(i.compute())}, Has(TaskId(i.compute())),
                       "compute", i.compute());
      case v1::Instruction::kSend:
        return Edge<Send>(i.send(), "send");
      case v1::Instruction::kRecv:
        return Edge<Recv>(i.recv(), "recv");
      case v1::Instruction::kWaitRecv:
        return Edge<WaitRecv>(i.wait_recv(), "wait_recv");
      case v1::Instruction::kWaitSend:
        return Edge<WaitSend>(i.wait_send(), "wait_send");
      case v1::Instruction::kFree:
        return Edge<Free>(i.free(), "free");
      case v1::Instruction::kOffload:
        return Copy<Offload>(i.offload(), "offload.task");
      case v1::Instruction::kFetch:
        return Copy<Fetch>(i.fetch(), "fetch.task");
      case v1::Instruction::kReduceGradients:
        return Instruction(ReduceGradients{});
      case v1::Instruction::kOptimizerStep:
        return Instruction(OptimizerStep{});
      case v1::Instruction::INSTRUCTION_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError("is not set, or of a newer version");
  }

 private:
  bool Has(TaskId task) const { return graph_.tasks().Contains(task); }

  static absl::StatusOr<Instruction> Checked(Instruction instruction, bool ok,
                                             const char* field, int value) {
    if (ok) return instruction;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %d, which the graph has not", field, value));
  }
  template <typename T>
  absl::StatusOr<Instruction> Edge(int edge, const char* field) const {
    return Checked(T{EdgeId(edge)}, graph_.edges().Contains(EdgeId(edge)),
                   field, edge);
  }
  template <typename T>
  absl::StatusOr<Instruction> Copy(const v1::Copy& copy,
                                   const char* field) const {
    if (copy.payload_bytes() < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "payload_bytes is %d; it must be >= 0", copy.payload_bytes()));
    }
    return Checked(T{TaskId(copy.task()), Bytes(copy.payload_bytes())},
                   Has(TaskId(copy.task())), field, copy.task());
  }

  const StageGraph& graph_;
};

absl::Status WrongField(const char* field, const std::string& value,
                        const std::string& allowed) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %s; it must be %s", field, value, allowed));
}

absl::Status CheckNumbers(const v1::ExecutionPlan& proto) {
  const struct {
    const char* field;
    int64_t value;
  } whole[] = {
      {"step", proto.step()},
      {"replica", proto.replica()},
      {"predicted_step_time_ns", proto.predicted_step_time_ns()},
      {"lower_bound_ns", proto.lower_bound_ns()},
  };
  for (const auto& [field, value] : whole) {
    if (value < 0) {
      return WrongField(field, absl::StrFormat("%d", value), ">= 0");
    }
  }
  const struct {
    const char* field;
    double value;
  } real[] = {
      {"model_flops", proto.model_flops()},
      {"peak_flops_per_second", proto.peak_flops_per_second()},
  };
  for (const auto& [field, value] : real) {
    if (!std::isfinite(value) || value < 0) {
      return WrongField(field, absl::StrFormat("%g", value), "finite and >= 0");
    }
  }
  return absl::OkStatus();
}

// The kinds of sharing, in the order of the proto's values.
constexpr LinkSharing kSharing[] = {
    LinkSharing::kPerPair, LinkSharing::kNone,   LinkSharing::kBothWays,
    LinkSharing::kPerRank, LinkSharing::kPerNic, LinkSharing::kFairNic};

v1::SharedLinks ToProto(const SharedLinks& links) {
  v1::SharedLinks proto;
  const auto at =
      std::find(std::begin(kSharing), std::end(kSharing), links.sharing);
  proto.set_sharing(
      static_cast<v1::SharedLinks::Sharing>(at - std::begin(kSharing)));
  proto.set_blocking_sends(links.blocking_sends);
  proto.set_host_bandwidth_bytes_per_second(
      links.host_bandwidth.bytes_per_second);
  proto.mutable_nic_of_rank()->Add(links.nic_of_rank.begin(),
                                   links.nic_of_rank.end());
  proto.mutable_node_of_rank()->Add(links.node_of_rank.begin(),
                                    links.node_of_rank.end());
  proto.set_ring_hops(links.ring_hops);
  proto.set_ring_nodes(links.ring_nodes);
  proto.mutable_host_link_of_rank()->Add(links.host_link_of_rank.begin(),
                                         links.host_link_of_rank.end());
  return proto;
}

absl::StatusOr<SharedLinks> FromProto(const v1::SharedLinks& proto,
                                      int32_t num_ranks) {
  const int64_t kinds = std::ssize(kSharing);
  if (proto.sharing() < 0 || proto.sharing() >= kinds) {
    return WrongField("links.sharing", absl::StrFormat("%d", proto.sharing()),
                      absl::StrFormat("in [0, %d]", kinds - 1));
  }
  SharedLinks links{.sharing = kSharing[proto.sharing()],
                    .blocking_sends = proto.blocking_sends(),
                    .host_bandwidth = {proto.host_bandwidth_bytes_per_second()},
                    .ring_hops = proto.ring_hops(),
                    .ring_nodes = proto.ring_nodes()};
  links.nic_of_rank.assign(proto.nic_of_rank().begin(),
                           proto.nic_of_rank().end());
  links.node_of_rank.assign(proto.node_of_rank().begin(),
                            proto.node_of_rank().end());
  links.host_link_of_rank.assign(proto.host_link_of_rank().begin(),
                                 proto.host_link_of_rank().end());
  const absl::Status checked = CheckLinks(links, num_ranks);
  if (!checked.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("links.", std::string(checked.message())));
  }
  return links;
}

}  // namespace

v1::Program ToProto(const std::vector<Instruction>& program) {
  v1::Program proto;
  for (const Instruction& instruction : program) {
    SetInstruction(instruction, proto.add_instructions());
  }
  return proto;
}

v1::LossShare ToProto(const LossShare& share) {
  v1::LossShare proto;
  proto.set_module(share.module.value());
  proto.set_microbatch(share.microbatch.value());
  proto.set_sub_microbatch(share.sub_microbatch);
  proto.set_tokens(share.tokens);
  proto.set_instances(share.instances);
  return proto;
}

v1::LossTotal ToProto(const LossTotal& total) {
  v1::LossTotal proto;
  proto.set_module(total.module.value());
  proto.set_tokens(total.tokens);
  proto.set_instances(total.instances);
  return proto;
}

v1::PaddedShape ToProto(const PaddedShape& shape) {
  v1::PaddedShape proto;
  proto.set_module(shape.module.value());
  proto.set_microbatch(shape.microbatch.value());
  proto.set_sub_microbatch(shape.sub_microbatch);
  proto.set_tokens(shape.tokens);
  proto.set_bucket_tokens(shape.bucket);
  return proto;
}

v1::ExecutionPlan ToProto(const ExecutionPlan& plan) {
  v1::ExecutionPlan proto;
  proto.set_format(kFormat);
  proto.set_version(ExecutionPlan::kVersion);
  proto.set_job(plan.job);
  proto.set_step(plan.step);
  proto.set_replica(plan.replica);
  proto.set_schedule(plan.schedule);
  *proto.mutable_graph() = ToProto(plan.graph);
  for (const std::vector<Instruction>& program : plan.programs) {
    *proto.add_programs() = ToProto(program);
  }
  proto.set_predicted_step_time_ns(plan.predicted_step_time.count());
  proto.set_lower_bound_ns(plan.lower_bound.count());
  proto.set_model_flops(plan.model_flops.count);
  proto.set_peak_flops_per_second(plan.peak_flops_per_second);
  for (const LossShare& share : plan.loss_shares) {
    *proto.add_loss_shares() = ToProto(share);
  }
  for (const LossTotal& total : plan.loss_totals) {
    *proto.add_loss_totals() = ToProto(total);
  }
  for (const PaddedShape& shape : plan.padded_shapes) {
    *proto.add_padded_shapes() = ToProto(shape);
  }
  if (plan.links != SharedLinks{}) *proto.mutable_links() = ToProto(plan.links);
  const Fingerprint checksum = Checksum(plan);
  proto.mutable_checksum()->set_high(checksum.high);
  proto.mutable_checksum()->set_low(checksum.low);
  return proto;
}

absl::StatusOr<ExecutionPlan> FromProto(const v1::ExecutionPlan& proto) {
  if (proto.format() != kFormat) {
    return WrongField("format", absl::StrFormat("\"%s\"", proto.format()),
                      absl::StrFormat("\"%s\"", kFormat));
  }
  if (proto.version() != ExecutionPlan::kVersion) {
    return WrongField("version", absl::StrFormat("%d", proto.version()),
                      absl::StrFormat("%d", ExecutionPlan::kVersion));
  }
  PIPELOOM_RETURN_IF_ERROR(CheckNumbers(proto));
  ExecutionPlan plan;
  plan.job = proto.job();
  plan.step = proto.step();
  plan.replica = proto.replica();
  plan.schedule = proto.schedule();
  PIPELOOM_ASSIGN_OR_RETURN(plan.graph, FromProto(proto.graph()));
  if (proto.programs_size() != plan.graph.num_ranks()) {
    return WrongField(
        "programs", absl::StrFormat("a list of %d", proto.programs_size()),
        absl::StrFormat("one for each of %d ranks", plan.graph.num_ranks()));
  }
  const InstructionReader reader(plan.graph);
  for (const v1::Program& p : proto.programs()) {
    std::vector<Instruction> program;
    program.reserve(static_cast<size_t>(p.instructions_size()));
    for (const v1::Instruction& i : p.instructions()) {
      absl::StatusOr<Instruction> instruction = reader.Read(i);
      if (!instruction.ok()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "programs[%d].instructions[%d]: %s", plan.programs.size(),
            program.size(), std::string(instruction.status().message())));
      }
      program.push_back(*instruction);
    }
    plan.programs.push_back(std::move(program));
  }
  plan.predicted_step_time = Nanoseconds(proto.predicted_step_time_ns());
  plan.lower_bound = Nanoseconds(proto.lower_bound_ns());
  plan.model_flops = Flops{proto.model_flops()};
  plan.peak_flops_per_second = proto.peak_flops_per_second();
  for (const v1::LossShare& share : proto.loss_shares()) {
    if (share.module() < 0 || share.microbatch() < 0 ||
        share.sub_microbatch() < 0 || share.tokens() < 0 ||
        share.instances() < 0) {
      return WrongField("loss_shares", "negative", ">= 0");
    }
    plan.loss_shares.push_back({.module = ModuleId(share.module()),
                                .microbatch = MicrobatchId(share.microbatch()),
                                .sub_microbatch = share.sub_microbatch(),
                                .tokens = share.tokens(),
                                .instances = share.instances()});
  }
  for (const v1::LossTotal& total : proto.loss_totals()) {
    if (total.module() < 0 || total.tokens() < 0 || total.instances() < 0) {
      return WrongField("loss_totals", "negative", ">= 0");
    }
    plan.loss_totals.push_back({.module = ModuleId(total.module()),
                                .tokens = total.tokens(),
                                .instances = total.instances()});
  }
  for (const v1::PaddedShape& shape : proto.padded_shapes()) {
    if (shape.module() < 0 || shape.microbatch() < 0 ||
        shape.sub_microbatch() < 0 || shape.tokens() < 0 ||
        shape.bucket_tokens() < 0) {
      return WrongField("padded_shapes", "negative", ">= 0");
    }
    plan.padded_shapes.push_back(
        {.module = ModuleId(shape.module()),
         .microbatch = MicrobatchId(shape.microbatch()),
         .sub_microbatch = shape.sub_microbatch(),
         .tokens = shape.tokens(),
         .bucket = shape.bucket_tokens()});
  }
  PIPELOOM_ASSIGN_OR_RETURN(plan.links,
                            FromProto(proto.links(), plan.graph.num_ranks()));
  const Fingerprint stored{.high = proto.checksum().high(),
                           .low = proto.checksum().low()};
  const Fingerprint actual = Checksum(plan);
  if (stored != actual) {
    return WrongField("checksum",
                      absl::StrFormat("%016x%016x", stored.high, stored.low),
                      absl::StrFormat("%016x%016x: the content was changed",
                                      actual.high, actual.low));
  }
  return plan;
}

}  // namespace pipeloom::convert
