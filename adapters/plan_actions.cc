#include "adapters/plan_actions.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "adapters/action_table.h"
#include "base/overloaded.h"
#include "base/status_macros.h"
#include "ir/plan/pass_pairs.h"

namespace pipeloom::adapters {
namespace {

size_t At(int32_t i) { return static_cast<size_t>(i); }

class Reader {
 public:
  Reader(const ExecutionPlan& plan, const ActionOptions& options)
      : plan_(plan), graph_(plan.graph), options_(options) {}

  absl::StatusOr<PlanActions> Read() {
    PIPELOOM_RETURN_IF_ERROR(CheckTasks());
    PIPELOOM_RETURN_IF_ERROR(CheckEdges());
    PIPELOOM_RETURN_IF_ERROR(NumberMicrobatches());
    NoteShapes();
    for (const RankId r : graph_.rank_ids()) {
      result_.table.ranks.emplace_back();
      for (const Instruction& instruction : plan_.programs[r]) {
        PIPELOOM_RETURN_IF_ERROR(Add(instruction));
      }
    }
    PIPELOOM_RETURN_IF_ERROR(CheckTable(result_.table, &result_.shape));
    if (options_.transfers) {
      // The plan posts receives ahead of its sends; where a backend carries
      // out one transfer after another, both ranks would wait.
      PIPELOOM_RETURN_IF_ERROR(AddTransfers(&result_.table));
      PIPELOOM_RETURN_IF_ERROR(CheckTable(result_.table, &result_.shape));
    }
    return std::move(result_);
  }

 private:
  absl::Status No(absl::string_view what) const {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.format, " cannot say this plan: ", what));
  }
  std::string Name(TaskId t) const { return DescribeTask(graph_, t); }

  absl::Status CheckTasks() {
    for (const TaskId t : graph_.task_ids()) {
      const Task& task = graph_.task(t);
      if (task.stage.is_none() || task.microbatch.is_none()) {
        return No(
            absl::StrCat("task ", t.value(), " has no stage or no microbatch"));
      }
      num_stages_ = std::max(num_stages_, task.stage.value() + 1);
      num_microbatches_ =
          std::max(num_microbatches_, task.microbatch.value() + 1);
    }
    const int64_t cells = int64_t{num_stages_} * num_microbatches_;
    if (cells > graph_.num_tasks()) {
      return No(absl::StrFormat(
          "it has %d tasks for %d stages and %d microbatches, so some stage "
          "skips a microbatch; every stage must have every one",
          graph_.num_tasks(), num_stages_, num_microbatches_));
    }
    tasks_.assign(static_cast<size_t>(cells) * 3, TaskId());
    for (const TaskId t : graph_.task_ids()) {
      const Task& task = graph_.task(t);
      TaskId& slot =
          Slot(task.stage.value(), task.microbatch.value(), task.pass);
      if (!slot.is_none()) {
        return No(absl::StrCat(
            Name(t),
            " is one of several sub-microbatches; set the module's "
            "sub-microbatch size to the whole microbatch"));
      }
      slot = t;
      if (task.duration == kZero && task.pass == Pass::kForward) {
        Note(
            "stages run microbatches in which their layers have no work: let "
            "them hand their input on");
      }
      if (task.recomputes && !options_.recompute_at_launch) {
        if (!options_.drop_memory) {
          return No(absl::StrCat(
              Name(t),
              " runs its forward again; wrap the stage in activation "
              "checkpointing and leave memory choices out (--drop-memory)"));
        }
        Note("recomputation is left out: checkpoint these stages yourself");
      }
    }
    for (int32_t s = 0; s < num_stages_; ++s) {
      for (int32_t m = 0; m < num_microbatches_; ++m) {
        if (Slot(s, m, Pass::kForward).is_none()) {
          return No(absl::StrFormat(
              "stage %d skips microbatch %d (its module has no work there); "
              "every stage must have every microbatch",
              s, m));
        }
        if (Slot(s, m, Pass::kBackward).is_none()) {
          return No(absl::StrFormat(
              "stage %d has no backward of microbatch %d (a frozen module); "
              "every forward needs one",
              s, m));
        }
      }
    }
    return absl::OkStatus();
  }

  // Every edge must be one that a chain of stages implies.
  absl::Status CheckEdges() {
    for (const EdgeId e : graph_.edge_ids()) {
      const Dependency& edge = graph_.edge(e);
      const Task& from = graph_.task(edge.from);
      const Task& to = graph_.task(edge.to);
      const int32_t step = to.stage.value() - from.stage.value();
      // Between microbatches there are no tensors: the order of each rank, and
      // what it was timed for, hold such an edge.
      const bool order_only =
          edge.payload == Bytes(0) && from.microbatch != to.microbatch;
      if (order_only) continue;
      const bool forward = from.pass == Pass::kForward;
      const bool legal =
          from.microbatch == to.microbatch &&
          (step == 0 ? from.pass < to.pass
                     : from.pass == to.pass && from.pass != Pass::kWeightGrad &&
                           step == (forward ? 1 : -1));
      if (!legal) {
        return No(absl::StrCat(Name(edge.to), " waits for ", Name(edge.from),
                               "; stages must be a chain in which each gets "
                               "its input from the one before"));
      }
    }
    // And a chain implies every one of these.
    for (int32_t s = 0; s + 1 < num_stages_; ++s) {
      for (int32_t m = 0; m < num_microbatches_; ++m) {
        const TaskId from = Slot(s, m, Pass::kForward);
        const TaskId to = Slot(s + 1, m, Pass::kForward);
        bool found = false;
        for (const EdgeId e : graph_.outgoing(from)) {
          found |= graph_.edge(e).to == to;
        }
        if (!found) {
          return No(absl::StrCat(Name(to), " does not wait for ", Name(from),
                                 "; stages must be a chain in which each gets "
                                 "its input from the one before"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status NumberMicrobatches() {
    std::vector<std::vector<int32_t>> forwards(At(num_stages_));
    for (const auto& program : plan_.programs) {
      for (const Instruction& instruction : program) {
        const auto* compute = std::get_if<Compute>(&instruction);
        if (compute == nullptr) continue;
        const Task& task = graph_.task(compute->task);
        if (task.pass != Pass::kForward) continue;
        forwards[At(task.stage.value())].push_back(task.microbatch.value());
      }
    }
    for (int32_t s = 1; s < num_stages_; ++s) {
      if (forwards[At(s)] == forwards[0]) continue;
      return No(absl::StrFormat(
          "stage %d goes forward through microbatches %s, stage 0 through %s; "
          "all stages must take them in one order",
          s, absl::StrJoin(forwards[At(s)], ","),
          absl::StrJoin(forwards[0], ",")));
    }
    result_.microbatches = forwards[0];
    number_of_.assign(At(num_microbatches_), 0);
    bool changed = false;
    for (int32_t i = 0; i < num_microbatches_; ++i) {
      number_of_[At(forwards[0][At(i)])] = i;
      changed |= forwards[0][At(i)] != i;
    }
    if (changed) {
      Note(absl::StrCat("microbatches are renumbered: feed them in the order ",
                        absl::StrJoin(forwards[0], ",")));
    }
    return absl::OkStatus();
  }

  void NoteShapes() {
    std::vector<int64_t> rows(At(num_stages_), -1);
    for (const EdgeId e : graph_.edge_ids()) {
      const Dependency& edge = graph_.edge(e);
      const Task& from = graph_.task(edge.from);
      if (from.pass != Pass::kForward || edge.rows == 0) continue;
      int64_t& seen = rows[At(from.stage.value())];
      if (seen < 0) seen = edge.rows;
      if (seen != edge.rows) {
        Note(
            "tensors of microbatches differ in rows: set the shape of every "
            "receive, or pad");
        return;
      }
    }
  }

  absl::Status Add(const Instruction& instruction) {
    return std::visit(
        Overloaded{
            [&](const Compute& i) { return AddPass(i.task); },
            [&](const Send& i) { return NoteIfLate(i.edge); },
            [&](const Recv&) { return absl::OkStatus(); },
            [&](const WaitRecv&) { return absl::OkStatus(); },
            [&](const WaitSend&) { return absl::OkStatus(); },
            [&](const Free&) { return absl::OkStatus(); },
            [&](const Offload& i) { return Copy(i.task); },
            [&](const Fetch& i) { return Copy(i.task); },
            [&](const ReduceGradients&) { return absl::OkStatus(); },
            [&](const OptimizerStep&) { return absl::OkStatus(); },
        },
        instruction);
  }

  absl::Status NoteIfLate(EdgeId e) {
    if (graph_.edge(e).from != last_task_) {
      Note(
          "tensors that the plan sends later, as their receivers have no room "
          "for them yet, are sent at once: memory may need more");
    }
    return absl::OkStatus();
  }

  absl::Status Copy(TaskId t) {
    if (!options_.drop_memory) {
      return No(absl::StrCat(Name(t),
                             " moves activations to host memory "
                             "(--drop-memory leaves that out)"));
    }
    Note("offloading is left out");
    return absl::OkStatus();
  }

  Action ActionOf(TaskId t) {
    const Task& task = graph_.task(t);
    const int32_t s = task.stage.value();
    const int32_t m = task.microbatch.value();
    const bool split = !Slot(s, m, Pass::kWeightGrad).is_none();
    const ActionKind kind = task.pass == Pass::kForward ? ActionKind::kForward
                            : task.pass == Pass::kWeightGrad
                                ? ActionKind::kWeightGrad
                            : split ? ActionKind::kBackwardInput
                                    : ActionKind::kBackward;
    return {s, kind, number_of_[At(m)]};
  }

  absl::Status AddPass(TaskId t) {
    auto& row = result_.table.ranks.back();
    const Action action = ActionOf(t);
    // A pair: its backward, and that one's weight gradient, join its forward.
    if (!row.empty() && !row.back().actions.empty()) {
      Cell& last = row.back();
      if (action.kind == ActionKind::kBackward ||
          action.kind == ActionKind::kBackwardInput) {
        const TaskId before = last_task_;
        const bool pair =
            std::find(options_.pairs.begin(), options_.pairs.end(),
                      std::pair(before, t)) != options_.pairs.end();
        if (pair && last.actions.size() == 1) {
          last.actions.push_back(action);
          last_task_ = t;
          return absl::OkStatus();
        }
      }
      Action& before = last.actions.back();
      const bool joins = last.actions.size() == 2 ||
                         std::find(options_.whole.begin(), options_.whole.end(),
                                   last_task_) != options_.whole.end();
      if (action.kind == ActionKind::kWeightGrad && joins &&
          before.kind == ActionKind::kBackwardInput &&
          before.stage == action.stage &&
          before.microbatch == action.microbatch) {
        before.kind = ActionKind::kBackward;
        last_task_ = t;
        return absl::OkStatus();
      }
    }
    if (IsSecondOfPair(graph_.task(t))) {
      Note("passes that run together run one after the other");
    }
    row.push_back({{action}});
    last_task_ = t;
    return absl::OkStatus();
  }

  void Note(std::string note) {
    if (std::find(result_.notes.begin(), result_.notes.end(), note) ==
        result_.notes.end()) {
      result_.notes.push_back(std::move(note));
    }
  }

  TaskId& Slot(int32_t stage, int32_t microbatch, Pass pass) {
    return tasks_[(At(stage) * At(num_microbatches_) + At(microbatch)) * 3 +
                  static_cast<size_t>(pass)];
  }

  const ExecutionPlan& plan_;
  const StageGraph& graph_;
  const ActionOptions& options_;
  PlanActions result_{};
  int32_t num_stages_ = 0;
  int32_t num_microbatches_ = 0;
  std::vector<TaskId> tasks_{};       // Indexed by stage, microbatch, pass.
  std::vector<int32_t> number_of_{};  // Indexed by the plan's microbatch.
  TaskId last_task_{};
};

// A pass of the table on its way into a graph.
struct Placed {
  Action action{};
  int32_t rank = 0;
  int32_t partner = -1;  // The other pass of its pair.
  TaskId task{};
};

// Makes a graph and an order of a checked table.
class TableGraph {
 public:
  // Neither may be changed or destroyed while it is used.
  TableGraph(const ActionTable& table, const TableShape& shape)
      : table_(table),
        shape_(shape),
        forward_(At(shape.num_stages) * At(shape.num_microbatches), -1),
        backward_(forward_.size(), -1) {
    PlacePasses();
  }

  absl::StatusOr<ImportedSchedule> Schedule(const ActionTimes& times,
                                            const std::string& name) {
    ImportedSchedule result;
    result.order.resize(static_cast<int32_t>(table_.ranks.size()));
    std::vector<int64_t> stages_of(table_.ranks.size(), 0);
    for (const int32_t rank : shape_.rank_of_stage) {
      if (rank >= 0) ++stages_of[At(rank)];
    }
    IdVector<TaskId, Task> tasks;
    for (Placed& pass : passes_) {
      pass.task =
          tasks.push_back(TaskOf(pass.action, times, stages_of[At(pass.rank)]));
      tasks[pass.task].rank = RankId(pass.rank);
      result.order[RankId(pass.rank)].push_back(pass.task);
    }
    PIPELOOM_ASSIGN_OR_RETURN(
        result.graph,
        StageGraph::Create(name,
                           IdVector<RankId, RankSpec>(
                               static_cast<int32_t>(table_.ranks.size())),
                           {"model"}, std::move(tasks), Edges(times)));
    return result;
  }

 private:
  size_t Index(int32_t stage, int32_t microbatch) const {
    return At(stage) * At(shape_.num_microbatches) + At(microbatch);
  }

  // Returns whether the passes whose output it takes have been placed.
  bool IsReady(const Action& a) const {
    if (a.kind == ActionKind::kForward) {
      return a.stage == 0 || forward_[Index(a.stage - 1, a.microbatch)] >= 0;
    }
    if (a.kind == ActionKind::kBackward ||
        a.kind == ActionKind::kBackwardInput) {
      return a.stage + 1 == shape_.num_stages ||
             backward_[Index(a.stage + 1, a.microbatch)] >= 0;
    }
    return true;
  }

  // Places the passes in the order of a walk over the ranks, which is
  // topological; idle cells and transfers fall away.
  void PlacePasses() {
    std::vector<size_t> at(table_.ranks.size(), 0);
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t r = 0; r < at.size(); ++r) {
        // One cell a turn, so that tasks are numbered about by time.
        if (at[r] == table_.ranks[r].size()) continue;
        const auto& actions = table_.ranks[r][at[r]].actions;
        if (!std::all_of(actions.begin(), actions.end(),
                         [&](const Action& a) { return IsReady(a); })) {
          continue;
        }
        PlaceCell(static_cast<int32_t>(r), actions);
        ++at[r];
        progress = true;
      }
    }
  }

  void PlaceCell(int32_t rank, const std::vector<Action>& actions) {
    const auto first = static_cast<int32_t>(passes_.size());
    for (const Action& a : actions) {
      if (IsTransfer(a.kind)) continue;
      const auto number = static_cast<int32_t>(passes_.size());
      Placed pass{a, rank};
      if (actions.size() == 2) {
        pass.partner = number == first ? first + 1 : first;
      }
      passes_.push_back(pass);
      if (a.kind == ActionKind::kForward) {
        forward_[Index(a.stage, a.microbatch)] = number;
      } else if (a.kind != ActionKind::kWeightGrad) {
        backward_[Index(a.stage, a.microbatch)] = number;
      }
    }
  }

  // Returns the task of an action on a rank with `stages` stages, but for the
  // rank.
  static Task TaskOf(const Action& a, const ActionTimes& times,
                     int64_t stages) {
    Task task;
    task.module = ModuleId(0);
    task.stage = StageId(a.stage);
    task.microbatch = MicrobatchId(a.microbatch);
    const bool frees =
        a.kind == ActionKind::kBackward || a.kind == ActionKind::kWeightGrad;
    if (frees) task.free = times.activation;
    switch (a.kind) {
      case ActionKind::kForward:
        task.pass = Pass::kForward;
        task.duration = times.forward / stages;
        task.alloc = times.activation;
        break;
      case ActionKind::kWeightGrad:
        task.pass = Pass::kWeightGrad;
        task.duration = times.weight_grad / stages;
        break;
      case ActionKind::kBackwardInput:
        task.pass = Pass::kBackward;
        task.duration = times.backward_input / stages;
        break;
      default:
        task.pass = Pass::kBackward;
        task.duration = (times.backward_input + times.weight_grad) / stages;
        break;
    }
    return task;
  }

  IdVector<EdgeId, Dependency> Edges(const ActionTimes& times) const {
    IdVector<EdgeId, Dependency> edges;
    const auto connect = [&](int32_t from, int32_t to, bool data) {
      edges.push_back(
          EdgeOf(passes_[At(from)], passes_[At(to)], data, times.transfer));
    };
    // The output of `from` for `to`. What one of a pair waits for its first
    // pass waits for; what one of a pair gives is there at the end of its last.
    const auto hand_over = [&](int32_t from, int32_t to) {
      connect(from, to, true);
      const int32_t from_pair = passes_[At(from)].partner;
      const int32_t to_pair = passes_[At(to)].partner;
      if (to_pair >= 0 && to_pair < to) connect(from, to_pair, false);
      if (from_pair > from) {
        connect(from_pair, to, false);
        if (to_pair >= 0 && to_pair < to) connect(from_pair, to_pair, false);
      }
    };
    for (int32_t i = 0; i < static_cast<int32_t>(passes_.size()); ++i) {
      const Action& a = passes_[At(i)].action;
      if (a.kind == ActionKind::kForward) {
        if (a.stage > 0) {
          hand_over(forward_[Index(a.stage - 1, a.microbatch)], i);
        }
      } else if (a.kind == ActionKind::kWeightGrad) {
        connect(backward_[Index(a.stage, a.microbatch)], i, false);
      } else {
        if (a.stage + 1 < shape_.num_stages) {
          hand_over(backward_[Index(a.stage + 1, a.microbatch)], i);
        }
        connect(forward_[Index(a.stage, a.microbatch)], i, false);
      }
    }
    return edges;
  }

  static Dependency EdgeOf(const Placed& from, const Placed& to, bool data,
                           Duration transfer) {
    Dependency edge;
    edge.from = from.task;
    edge.to = to.task;
    if (from.rank == to.rank) return edge;
    edge.delay = transfer;
    if (data) {
      edge.occupancy = transfer;
      edge.payload = Bytes(1);
      edge.rows = 1;
      edge.width = 1;
    }
    return edge;
  }

  const ActionTable& table_;
  const TableShape& shape_;
  std::vector<Placed> passes_{};
  // The pass of each stage and microbatch; -1: not placed.
  std::vector<int32_t> forward_;
  std::vector<int32_t> backward_;
};

}  // namespace

absl::StatusOr<PlanActions> ActionsOf(const ExecutionPlan& plan,
                                      const ActionOptions& options) {
  return Reader(plan, options).Read();
}

absl::StatusOr<ImportedSchedule> ScheduleOf(const ActionTable& table,
                                            const ActionTimes& times,
                                            const std::string& name) {
  TableShape shape;
  PIPELOOM_RETURN_IF_ERROR(CheckTable(table, &shape));
  return TableGraph(table, shape).Schedule(times, name);
}

}  // namespace pipeloom::adapters
