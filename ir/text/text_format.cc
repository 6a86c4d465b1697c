#include "ir/text/text_format.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/overloaded.h"
#include "base/status_macros.h"
#include "ir/text/text_line.h"

namespace pipeloom {
namespace {

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::CEscape(text), "\"");
}

void PrintInstruction(const Instruction& instruction, std::string* out) {
  const auto line = [&](const char* word, int32_t id) {
    absl::StrAppend(out, "  ", word, " ", id, "\n");
  };
  const auto copy = [&](const char* word, TaskId task, Bytes payload) {
    absl::StrAppend(out, "  ", word, " ", task.value(), " bytes ",
                    payload.count(), "\n");
  };
  std::visit(Overloaded{
                 [&](const Compute& i) { line("compute", i.task.value()); },
                 [&](const Send& i) { line("send", i.edge.value()); },
                 [&](const Recv& i) { line("recv", i.edge.value()); },
                 [&](const WaitRecv& i) { line("wait_recv", i.edge.value()); },
                 [&](const WaitSend& i) { line("wait_send", i.edge.value()); },
                 [&](const Free& i) { line("free", i.edge.value()); },
                 [&](const Offload& i) { copy("offload", i.task, i.payload); },
                 [&](const Fetch& i) { copy("fetch", i.task, i.payload); },
                 [&](const ReduceGradients&) {
                   absl::StrAppend(out, "  reduce_gradients\n");
                 },
                 [&](const OptimizerStep&) {
                   absl::StrAppend(out, "  optimizer_step\n");
                 },
             },
             instruction);
}

Instruction ReadInstruction(TextReader& reader) {
  const auto edge = [&](const char* word) {
    return EdgeId(reader.Int32(word, 0));
  };
  Instruction result;
  if (reader.At("compute")) {
    result = Compute{TaskId(reader.Int32("compute", 0))};
  } else if (reader.At("send")) {
    result = Send{edge("send")};
  } else if (reader.At("recv")) {
    result = Recv{edge("recv")};
  } else if (reader.At("wait_recv")) {
    result = WaitRecv{edge("wait_recv")};
  } else if (reader.At("wait_send")) {
    result = WaitSend{edge("wait_send")};
  } else if (reader.At("free")) {
    result = Free{edge("free")};
  } else if (reader.At("offload")) {
    const TaskId task(reader.Int32("offload", 0));
    result = Offload{task, Bytes(reader.Int("bytes", 0))};
  } else if (reader.At("fetch")) {
    const TaskId task(reader.Int32("fetch", 0));
    result = Fetch{task, Bytes(reader.Int("bytes", 0))};
  } else if (reader.At("reduce_gradients")) {
    reader.Word();
    result = ReduceGradients{};
  } else if (reader.At("optimizer_step")) {
    reader.Word();
    result = OptimizerStep{};
  } else {
    reader.Fail(
        "compute, send, recv, wait_recv, wait_send, free, offload, fetch, "
        "reduce_gradients or optimizer_step");
  }
  return result;
}

RankSpec ReadRank(TextReader& reader) {
  RankSpec rank;
  rank.memory.limit = Bytes(reader.Int("limit"));
  rank.memory.weights = Bytes(reader.Int("weights"));
  rank.memory.gradients = Bytes(reader.Int("gradients"));
  rank.memory.optimizer = Bytes(reader.Int("optimizer"));
  rank.memory.overhead = Bytes(reader.Int("overhead"));
  rank.epilogue = Nanoseconds(reader.Int("epilogue"));
  return rank;
}

Task ReadTask(TextReader& reader) {
  Task task;
  if (reader.At("F")) {
    task.pass = Pass::kForward;
  } else if (reader.At("B")) {
    task.pass = Pass::kBackward;
  } else if (reader.At("W")) {
    task.pass = Pass::kWeightGrad;
  } else {
    reader.Fail("F, B or W");
  }
  reader.Word();
  task.rank = RankId(reader.Int32("rank"));
  task.module = ModuleId(reader.Int32("module"));
  task.stage = StageId(reader.Int32("stage"));
  task.microbatch = MicrobatchId(reader.Int32("microbatch"));
  task.sub_microbatch = reader.Int32("sub");
  task.duration = Nanoseconds(reader.Int("time"));
  task.alloc = Bytes(reader.Int("alloc"));
  task.free = Bytes(reader.Int("free"));
  if (reader.At("recomputes")) {
    reader.Word();
    task.recomputes = true;
  }
  if (reader.At("overlaps")) task.overlaps = TaskId(reader.Int32("overlaps"));
  return task;
}

Dependency ReadEdge(TextReader& reader) {
  Dependency edge;
  edge.from = TaskId(reader.Int32("from"));
  edge.to = TaskId(reader.Int32("to"));
  edge.delay = Nanoseconds(reader.Int("delay"));
  edge.occupancy = Nanoseconds(reader.Int("occupancy"));
  edge.payload = Bytes(reader.Int("payload"));
  edge.rows = reader.Int("rows");
  edge.width = reader.Int("width");
  return edge;
}

// Reads the lines of loss_total and loss_share, if there are any.
void ReadLoss(TextReader& reader, ExecutionPlan* plan) {
  for (; reader.At("loss_total"); reader.NextLine()) {
    reader.Word();
    LossTotal& total = plan->loss_totals.emplace_back();
    total.module = ModuleId(reader.Int32("module", 0));
    total.tokens = reader.Int("tokens", 0);
    total.instances = reader.Int("instances", 0);
    reader.ExpectEndOfLine();
  }
  for (; reader.At("loss_share"); reader.NextLine()) {
    reader.Word();
    LossShare& share = plan->loss_shares.emplace_back();
    share.module = ModuleId(reader.Int32("module", 0));
    share.microbatch = MicrobatchId(reader.Int32("microbatch", 0));
    share.sub_microbatch = reader.Int32("sub", 0);
    share.tokens = reader.Int("tokens", 0);
    share.instances = reader.Int("instances", 0);
    reader.ExpectEndOfLine();
  }
}

// Reads the lines of padded_shape, if there are any.
void ReadPaddedShapes(TextReader& reader, ExecutionPlan* plan) {
  for (; reader.At("padded_shape"); reader.NextLine()) {
    reader.Word();
    PaddedShape& shape = plan->padded_shapes.emplace_back();
    shape.module = ModuleId(reader.Int32("module", 0));
    shape.microbatch = MicrobatchId(reader.Int32("microbatch", 0));
    shape.sub_microbatch = reader.Int32("sub", 0);
    shape.tokens = reader.Int("tokens", 0);
    shape.bucket = reader.Int("bucket", 0);
    reader.ExpectEndOfLine();
  }
}

constexpr const char* kSharingNames[] = {"none",     "per-pair", "both-ways",
                                         "per-rank", "per-nic",  "fair-nic"};

void PrintLinks(const SharedLinks& links, std::string* out) {
  if (links == SharedLinks{}) return;
  absl::StrAppendFormat(
      out,
      "links %s blocking_sends %d host_bandwidth %.17g ring_hops %d "
      "ring_nodes %d\n",
      kSharingNames[static_cast<size_t>(links.sharing)],
      int{links.blocking_sends}, links.host_bandwidth.bytes_per_second,
      links.ring_hops, links.ring_nodes);
  const auto print = [&](const char* name, const std::vector<int32_t>& values) {
    if (values.empty()) return;
    absl::StrAppend(out, name, " ", absl::StrJoin(values, " "), "\n");
  };
  print("nic_of_rank", links.nic_of_rank);
  print("node_of_rank", links.node_of_rank);
  print("host_link_of_rank", links.host_link_of_rank);
}

// Reads the lines of links, if there are any.
void ReadLinks(TextReader& reader, SharedLinks* links) {
  if (!reader.At("links")) return;
  reader.Word();
  const std::string sharing = reader.Word();
  const auto at =
      std::find(std::begin(kSharingNames), std::end(kSharingNames), sharing);
  if (at == std::end(kSharingNames)) {
    return reader.Fail(absl::StrJoin(kSharingNames, ", "));
  }
  links->sharing = static_cast<LinkSharing>(at - std::begin(kSharingNames));
  links->blocking_sends = reader.Int("blocking_sends", 0) != 0;
  links->host_bandwidth = {reader.Double("host_bandwidth")};
  links->ring_hops = reader.Int32("ring_hops", 0);
  links->ring_nodes = reader.Int32("ring_nodes", 0);
  reader.ExpectEndOfLine();
  reader.NextLine();
  const auto read = [&](const char* name, std::vector<int32_t>* values) {
    if (!reader.At(name)) return;
    reader.Word();
    for (const int64_t value : reader.Ints(0)) {
      values->push_back(static_cast<int32_t>(
          std::min<int64_t>(value, std::numeric_limits<int32_t>::max())));
    }
    reader.NextLine();
  };
  read("nic_of_rank", &links->nic_of_rank);
  read("node_of_rank", &links->node_of_rank);
  read("host_link_of_rank", &links->host_link_of_rank);
}

// Reads the lines of a graph, from "graph" on, up to a line that is not one of
// them. Sets `more` to whether there is such a line.
absl::StatusOr<StageGraph> ReadGraph(TextReader& reader, bool* more) {
  const std::string name = reader.String("graph");
  reader.ExpectEndOfLine();
  std::vector<std::string> modules;
  IdVector<RankId, RankSpec> ranks;
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  // Items are numbered from 0 in the order of their lines.
  const auto number = [&](const char* word, int32_t expected) {
    if (reader.Int(word) != expected) {
      reader.Fail(absl::StrFormat("%s %d", word, expected));
    }
  };
  while ((*more = reader.NextLine())) {
    if (reader.At("module")) {
      modules.push_back(reader.String("module"));
    } else if (reader.At("rank")) {
      number("rank", ranks.size());
      ranks.push_back(ReadRank(reader));
    } else if (reader.At("task")) {
      number("task", tasks.size());
      tasks.push_back(ReadTask(reader));
    } else if (reader.At("edge")) {
      number("edge", edges.size());
      edges.push_back(ReadEdge(reader));
    } else {
      break;
    }
    reader.ExpectEndOfLine();
  }
  PIPELOOM_RETURN_IF_ERROR(reader.status());
  return StageGraph::Create(name, std::move(ranks), std::move(modules),
                            std::move(tasks), std::move(edges));
}

}  // namespace

std::string ToString(const StageGraph& graph) {
  std::string out = absl::StrCat("graph ", Quoted(graph.name()), "\n");
  for (const std::string& name : graph.module_names()) {
    absl::StrAppend(&out, "module ", Quoted(name), "\n");
  }
  for (const RankId r : graph.rank_ids()) {
    const RankMemory& m = graph.rank(r).memory;
    absl::StrAppendFormat(
        &out,
        "rank %d limit %d weights %d gradients %d optimizer %d overhead %d "
        "epilogue %d\n",
        r.value(), m.limit.count(), m.weights.count(), m.gradients.count(),
        m.optimizer.count(), m.overhead.count(),
        graph.rank(r).epilogue.count());
  }
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    absl::StrAppendFormat(
        &out,
        "task %d %c rank %d module %d stage %d microbatch %d sub %d time %d "
        "alloc %d free %d%s\n",
        t.value(), PassLetter(task.pass), task.rank.value(),
        task.module.value(), task.stage.value(), task.microbatch.value(),
        task.sub_microbatch, task.duration.count(), task.alloc.count(),
        task.free.count(), task.recomputes ? " recomputes" : "");
    if (!task.overlaps.is_none()) {
      out.pop_back();
      absl::StrAppendFormat(&out, " overlaps %d\n", task.overlaps.value());
    }
  }
  for (const EdgeId e : graph.edge_ids()) {
    const Dependency& edge = graph.edge(e);
    absl::StrAppendFormat(
        &out,
        "edge %d from %d to %d delay %d occupancy %d payload %d rows %d width "
        "%d\n",
        e.value(), edge.from.value(), edge.to.value(), edge.delay.count(),
        edge.occupancy.count(), edge.payload.count(), edge.rows, edge.width);
  }
  return out;
}

std::string ToString(const ExecutionPlan& plan) {
  std::string out = absl::StrFormat(
      "plan version %d\njob %s step %d replica %d schedule %s\n"
      "predicted_step_time_ns %d lower_bound_ns %d model_flops %.17g "
      "peak_flops_per_second %.17g\n",
      ExecutionPlan::kVersion, Quoted(plan.job), plan.step, plan.replica,
      Quoted(plan.schedule), plan.predicted_step_time.count(),
      plan.lower_bound.count(), plan.model_flops.count,
      plan.peak_flops_per_second);
  PrintLinks(plan.links, &out);
  for (const LossTotal& total : plan.loss_totals) {
    absl::StrAppendFormat(&out, "loss_total module %d tokens %d instances %d\n",
                          total.module.value(), total.tokens, total.instances);
  }
  for (const LossShare& share : plan.loss_shares) {
    absl::StrAppendFormat(
        &out,
        "loss_share module %d microbatch %d sub %d tokens %d instances %d\n",
        share.module.value(), share.microbatch.value(), share.sub_microbatch,
        share.tokens, share.instances);
  }
  for (const PaddedShape& shape : plan.padded_shapes) {
    absl::StrAppendFormat(
        &out,
        "padded_shape module %d microbatch %d sub %d tokens %d bucket %d\n",
        shape.module.value(), shape.microbatch.value(), shape.sub_microbatch,
        shape.tokens, shape.bucket);
  }
  absl::StrAppend(&out, ToString(plan.graph));
  for (const RankId r : plan.programs.ids()) {
    absl::StrAppend(&out, "program ", r.value(), "\n");
    for (const Instruction& instruction : plan.programs[r]) {
      PrintInstruction(instruction, &out);
    }
  }
  absl::StrAppend(&out, "end\n");
  return out;
}

absl::StatusOr<StageGraph> ParseStageGraph(absl::string_view text) {
  TextReader reader(text);
  if (!reader.NextLine()) reader.Fail("\"graph\"");
  bool more = false;
  PIPELOOM_ASSIGN_OR_RETURN(StageGraph graph, ReadGraph(reader, &more));
  if (more) reader.Fail("module, rank, task, edge or the end of the text");
  PIPELOOM_RETURN_IF_ERROR(reader.status());
  return graph;
}

absl::StatusOr<ExecutionPlan> ParseExecutionPlan(absl::string_view text) {
  TextReader reader(text);
  ExecutionPlan plan;
  reader.NextLine();
  reader.Expect("plan");
  const int64_t version = reader.Int("version");
  if (reader.status().ok() && version != ExecutionPlan::kVersion) {
    return absl::InvalidArgumentError(
        absl::StrFormat("plan version is %d; this program reads %d", version,
                        ExecutionPlan::kVersion));
  }
  reader.ExpectEndOfLine();
  reader.NextLine();
  plan.job = reader.String("job");
  plan.step = reader.Int("step", 0);
  plan.replica = reader.Int32("replica", 0);
  plan.schedule = reader.String("schedule");
  reader.ExpectEndOfLine();
  reader.NextLine();
  plan.predicted_step_time =
      Nanoseconds(reader.Int("predicted_step_time_ns", 0));
  plan.lower_bound = Nanoseconds(reader.Int("lower_bound_ns", 0));
  plan.model_flops = Flops{reader.Double("model_flops")};
  plan.peak_flops_per_second = reader.Double("peak_flops_per_second");
  reader.ExpectEndOfLine();
  reader.NextLine();
  ReadLinks(reader, &plan.links);
  ReadLoss(reader, &plan);
  ReadPaddedShapes(reader, &plan);
  bool more = false;
  PIPELOOM_ASSIGN_OR_RETURN(plan.graph, ReadGraph(reader, &more));
  bool ended = false;
  while (more && !ended) {
    if (reader.At("program")) {
      if (reader.Int("program") != plan.programs.size()) {
        reader.Fail(absl::StrFormat("program %d", plan.programs.size()));
      }
      plan.programs.push_back({});
    } else if (reader.At("end")) {
      reader.Word();
      ended = true;
    } else if (plan.programs.empty()) {
      reader.Fail("module, rank, task, edge, program or end");
    } else {
      plan.programs[RankId(plan.programs.size() - 1)].push_back(
          ReadInstruction(reader));
    }
    reader.ExpectEndOfLine();
    more = reader.NextLine();
  }
  if (!ended) reader.Fail("\"end\"");
  if (more) reader.Fail("nothing after \"end\"");
  PIPELOOM_RETURN_IF_ERROR(reader.status());
  if (plan.programs.size() != plan.graph.num_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there are %d programs; the graph has %d ranks",
                        plan.programs.size(), plan.graph.num_ranks()));
  }
  PIPELOOM_RETURN_IF_ERROR(CheckLinks(plan.links, plan.graph.num_ranks()));
  for (const RankId r : plan.programs.ids()) {
    for (size_t i = 0; i < plan.programs[r].size(); ++i) {
      const bool known = std::visit(
          [&](const auto& instruction) {
            using T = std::decay_t<decltype(instruction)>;
            if constexpr (requires { instruction.edge; }) {
              return plan.graph.edges().Contains(instruction.edge);
            } else if constexpr (requires { instruction.task; }) {
              return plan.graph.tasks().Contains(instruction.task);
            } else {
              static_assert(std::is_empty_v<T>);
              return true;
            }
          },
          plan.programs[r][i]);
      if (!known) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "program %d: instruction %d names a task or edge that the graph "
            "has not",
            r.value(), i));
      }
    }
  }
  return plan;
}

}  // namespace pipeloom
