#include "tests/planner/step/plan_mutations.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/overloaded.h"
#include "base/status_macros.h"
#include "ir/plan/pass_pairs.h"

namespace pipeloom::testing {

absl::StatusOr<ExecutionPlan> PlanParts::Build() const {
  ExecutionPlan built = plan;
  PIPELOOM_ASSIGN_OR_RETURN(
      built.graph,
      StageGraph::Create(plan.graph.name(), ranks, plan.graph.module_names(),
                         IdVector<TaskId, Task>(tasks),
                         IdVector<EdgeId, Dependency>(edges)));
  return built;
}

void PlanParts::Drop(TaskId dropped) {
  std::vector<int32_t> edge_now(edges.size(), -1);
  std::vector<Dependency> kept;
  for (size_t e = 0; e < edges.size(); ++e) {
    Dependency d = edges[e];
    if (d.from == dropped || d.to == dropped) continue;
    edge_now[e] = static_cast<int32_t>(kept.size());
    if (d.from > dropped) d.from = TaskId(d.from.value() - 1);
    if (d.to > dropped) d.to = TaskId(d.to.value() - 1);
    kept.push_back(d);
  }
  edges = std::move(kept);
  tasks.erase(tasks.begin() + dropped.value());
  for (Task& task : tasks) {
    if (task.overlaps == dropped) task.overlaps = TaskId();
    if (task.overlaps > dropped) {
      task.overlaps = TaskId(task.overlaps.value() - 1);
    }
  }
  Renumber(dropped, edge_now);
}

void PlanParts::Drop(EdgeId dropped) {
  std::vector<int32_t> edge_now;
  for (int32_t e = 0; e < static_cast<int32_t>(edges.size()); ++e) {
    edge_now.push_back(e == dropped.value()  ? -1
                       : e > dropped.value() ? e - 1
                                             : e);
  }
  edges.erase(edges.begin() + dropped.value());
  Renumber(TaskId(), edge_now);
}

void PlanParts::Renumber(TaskId dropped, const std::vector<int32_t>& edge_now) {
  for (std::vector<Instruction>& program : plan.programs) {
    std::vector<Instruction> now;
    for (Instruction i : program) {
      bool keep = true;
      const auto task = [&](TaskId& t) {
        keep = dropped.is_none() || t != dropped;
        if (!dropped.is_none() && t > dropped) t = TaskId(t.value() - 1);
      };
      const auto edge = [&](EdgeId& e) {
        e = EdgeId(edge_now[static_cast<size_t>(e.value())]);
        keep = !e.is_none();
      };
      std::visit(Overloaded{[&](Compute& c) { task(c.task); },
                            [&](Send& s) { edge(s.edge); },
                            [&](Recv& r) { edge(r.edge); },
                            [&](WaitRecv& w) { edge(w.edge); },
                            [&](WaitSend& w) { edge(w.edge); },
                            [&](Free& f) { edge(f.edge); },
                            [&](Offload& o) { task(o.task); },
                            [&](Fetch& f) { task(f.task); },
                            [](ReduceGradients&) {}, [](OptimizerStep&) {}},
                 i);
      if (keep) now.push_back(i);
    }
    program = std::move(now);
  }
}

namespace {

// Returns any task for which `is` holds; none if there is none.
template <typename Is>
TaskId AnyTask(const PlanParts& parts, Random& random, const Is& is) {
  std::vector<TaskId> found;
  for (size_t t = 0; t < parts.tasks.size(); ++t) {
    if (is(parts.tasks[t])) found.push_back(TaskId(static_cast<int32_t>(t)));
  }
  return found.empty() ? TaskId() : found[Index(random, found.size())];
}
TaskId AnyTask(const PlanParts& parts, Random& random) {
  return AnyTask(parts, random, [](const Task&) { return true; });
}
TaskId AnyOf(const PlanParts& parts, Random& random, Pass pass) {
  return AnyTask(parts, random, [&](const Task& t) { return t.pass == pass; });
}

// Returns the forward of a backward, or the backward of a weight gradient.
TaskId Before(const PlanParts& parts, TaskId t, Pass pass) {
  const Task& task = parts.tasks[static_cast<size_t>(t.value())];
  for (size_t i = 0; i < parts.tasks.size(); ++i) {
    const Task& other = parts.tasks[i];
    if (other.pass == pass && other.stage == task.stage &&
        other.microbatch == task.microbatch &&
        other.sub_microbatch == task.sub_microbatch) {
      return TaskId(static_cast<int32_t>(i));
    }
  }
  return TaskId();
}

EdgeId EdgeBetween(const PlanParts& parts, TaskId from, TaskId to) {
  for (size_t e = 0; e < parts.edges.size(); ++e) {
    if (parts.edges[e].from == from && parts.edges[e].to == to) {
      return EdgeId(static_cast<int32_t>(e));
    }
  }
  return EdgeId();
}

void MoveBefore(std::vector<Instruction>& program, TaskId moved, TaskId there) {
  std::erase(program, Instruction(Compute{moved}));
  program.insert(
      std::find(program.begin(), program.end(), Instruction(Compute{there})),
      Compute{moved});
}

bool BackwardFirst(PlanParts& p, Random& random) {
  const TaskId b = AnyOf(p, random, Pass::kBackward);
  if (b.is_none()) return false;
  MoveBefore(p.ProgramOf(b), b, Before(p, b, Pass::kForward));
  return true;
}

// The same without the edge that forbids it.
bool BackwardFirstWithoutEdge(PlanParts& p, Random& random) {
  const TaskId b = AnyOf(p, random, Pass::kBackward);
  if (b.is_none()) return false;
  const TaskId f = Before(p, b, Pass::kForward);
  MoveBefore(p.ProgramOf(b), b, f);
  p.Drop(EdgeBetween(p, f, b));
  return true;
}

bool WeightGradFirstWithoutEdge(PlanParts& p, Random& random) {
  const TaskId w = AnyOf(p, random, Pass::kWeightGrad);
  if (w.is_none()) return false;
  const TaskId b = Before(p, w, Pass::kBackward);
  MoveBefore(p.ProgramOf(w), w, b);
  p.Drop(EdgeBetween(p, b, w));
  return true;
}

// Adds a pass again, with its edges inside the rank, right after the first.
bool Duplicate(PlanParts& p, Random& random) {
  const TaskId t = AnyTask(p, random);
  const TaskId again(static_cast<int32_t>(p.tasks.size()));
  Task copy = p.At(t);
  copy.alloc = copy.free = Bytes(0);
  copy.overlaps = TaskId();
  copy.duration = kZero;  // The prediction does not show it.
  p.tasks.push_back(copy);
  for (size_t e = 0, n = p.edges.size(); e < n; ++e) {
    Dependency d = p.edges[e];
    if (d.to != t || p.At(d.from).rank != copy.rank) continue;
    d.to = again;
    d.payload = Bytes(0);
    p.edges.push_back(d);
  }
  std::vector<Instruction>& program = p.ProgramOf(t);
  program.insert(
      std::find(program.begin(), program.end(), Instruction(Compute{t})) + 1,
      Compute{again});
  return true;
}

bool OtherStage(PlanParts& p, Random& random) {
  Task& task = p.At(AnyTask(p, random));
  const StageId before = task.stage;
  task.stage = random.Below(4) == 0
                   ? StageId(static_cast<int32_t>(random.Below(1 << 24)))
                   : p.At(AnyTask(p, random)).stage;
  return task.stage != before;
}

bool OtherModule(PlanParts& p, Random& random) {
  Task& task = p.At(AnyTask(p, random));
  const auto modules =
      static_cast<int64_t>(p.plan.graph.module_names().size()) + 1;
  const ModuleId before = task.module;
  task.module = ModuleId(static_cast<int32_t>(random.Below(modules)));
  return task.module != before;
}

bool OtherKind(PlanParts& p, Random& random) {
  Task& task = p.At(AnyTask(p, random));
  const Pass before = task.pass;
  task.pass = static_cast<Pass>(random.Below(3));
  return task.pass != before;
}

bool OtherMicrobatch(PlanParts& p, Random& random) {
  Task& task = p.At(AnyTask(p, random));
  const MicrobatchId before = task.microbatch;
  task.microbatch =
      random.Below(4) == 0
          ? MicrobatchId(static_cast<int32_t>(random.Below(1 << 30)))
          : p.At(AnyTask(p, random)).microbatch;
  return task.microbatch != before;
}

bool OtherSubMicrobatch(PlanParts& p, Random& random) {
  Task& task = p.At(AnyTask(p, random));
  const int32_t before = task.sub_microbatch;
  task.sub_microbatch = static_cast<int32_t>(random.Between(-1, 4));
  return task.sub_microbatch != before;
}

// Exchanges the microbatches of two tasks that are alike otherwise.
bool SwappedNames(PlanParts& p, Random& random) {
  const TaskId a = AnyTask(p, random);
  const Task of = p.At(a);
  const TaskId b = AnyTask(p, random, [&](const Task& t) {
    return t.pass == of.pass && t.stage == of.stage &&
           t.sub_microbatch == of.sub_microbatch &&
           t.microbatch != of.microbatch;
  });
  if (b.is_none()) return false;
  std::swap(p.At(a).microbatch, p.At(b).microbatch);
  return true;
}

bool OtherRank(PlanParts& p, Random& random) {
  const TaskId t = AnyTask(p, random);
  const auto to =
      RankId(static_cast<int32_t>(random.Below(p.plan.programs.size())));
  if (to == p.At(t).rank) return false;
  std::erase(p.ProgramOf(t), Instruction(Compute{t}));
  p.At(t).rank = to;
  auto& program = p.plan.programs[to];
  program.insert(program.begin() +
                     static_cast<ptrdiff_t>(Index(random, program.size() + 1)),
                 Compute{t});
  return true;
}

// Drops a pass of a module that is trained or has several stages: without the
// batch, a plan does not show the last sub-microbatch of other modules. No
// weight gradient: without it, a backward looks like a whole one.
bool DropPass(PlanParts& p, Random& random) {
  const TaskId any = AnyTask(p, random);
  if (p.At(any).pass == Pass::kWeightGrad) return false;
  const ModuleId module = p.At(any).module;
  const bool shows =
      std::any_of(p.tasks.begin(), p.tasks.end(), [&](const Task& t) {
        return t.module == module &&
               (t.pass == Pass::kBackward || t.stage != p.At(any).stage);
      });
  if (!shows) return false;
  p.Drop(any);
  return true;
}

bool DropWeightGrad(PlanParts& p, Random& random) {
  const TaskId any = AnyTask(p, random);
  if (p.At(any).pass != Pass::kWeightGrad) return false;
  p.Drop(any);
  return true;
}

bool IsOwnEdge(const PlanParts& p, const Dependency& d) {
  const Task& a = p.tasks[static_cast<size_t>(d.from.value())];
  const Task& b = p.tasks[static_cast<size_t>(d.to.value())];
  return a.stage == b.stage;
}

bool DropEdge(PlanParts& p, Random& random) {
  const EdgeId e(static_cast<int32_t>(Index(random, p.edges.size())));
  if (IsOwnEdge(p, p.At(e))) return false;
  p.Drop(e);
  return true;
}

// Between two passes of a stage: the order of the program says the same.
bool DropOwnEdge(PlanParts& p, Random& random) {
  const EdgeId e(static_cast<int32_t>(Index(random, p.edges.size())));
  if (!IsOwnEdge(p, p.At(e))) return false;
  p.Drop(e);
  return true;
}

bool OtherEnd(PlanParts& p, Random& random) {
  Dependency& d = p.edges[Index(random, p.edges.size())];
  const Dependency before = d;
  if (IsOwnEdge(p, d)) return false;
  (random.Below(2) == 0 ? d.from : d.to) = AnyTask(p, random);
  if (d.from > d.to) std::swap(d.from, d.to);
  return d != before;
}

// Changes the size of a tensor that has a gradient: of others a plan says it
// once only.
bool OtherSize(PlanParts& p, Random& random) {
  Dependency& d = p.edges[Index(random, p.edges.size())];
  const bool has_gradient = p.At(d.from).pass == Pass::kBackward ||
                            !Before(p, d.from, Pass::kBackward).is_none();
  if (d.payload == Bytes(0) || !has_gradient) return false;
  switch (random.Below(3)) {
    case 0:
      d.payload = Bytes(random.Below(d.payload.count()));
      break;
    case 1:
      d.rows += random.Between(1, 9);
      break;
    default:
      d.width *= 2;
  }
  return true;
}

bool OtherMemory(PlanParts& p, Random& random) {
  Task& task = p.At(AnyTask(p, random));
  (random.Below(2) == 0 ? task.alloc : task.free) += Bytes(1);
  return true;
}

bool OtherForm(PlanParts& p, Random& random) {
  Task& task = p.At(AnyTask(p, random));
  if (task.pass == Pass::kBackward) return false;
  task.recomputes = true;
  return true;
}

// A second weight gradient in the gaps of a backward.
bool SecondPair(PlanParts& p, Random& random) {
  const TaskId paired =
      AnyTask(p, random, [](const Task& t) { return !t.overlaps.is_none(); });
  if (paired.is_none()) return false;
  const TaskId backward = p.At(paired).overlaps;
  const TaskId other = AnyTask(p, random, [&](const Task& t) {
    return t.pass == Pass::kWeightGrad && t.rank == p.At(paired).rank &&
           t.overlaps != backward;
  });
  if (other.is_none()) return false;
  p.At(other).overlaps = backward;
  return true;
}

// A pair that hides more than the passes' gaps, or a pass without time that no
// other runs with.
bool OtherPair(PlanParts& p, Random& random) {
  const TaskId second =
      AnyTask(p, random, [](const Task& t) { return IsSecondOfPair(t); });
  if (second.is_none()) return false;
  TaskId& first = p.At(second).overlaps;
  // The price of recomputation is not checked.
  if (!p.At(first).recomputes && !p.At(second).recomputes && random.Below(2)) {
    p.At(first).duration = p.At(first).duration * random.Between(50, 98) / 100;
  } else {
    first = TaskId();
  }
  return true;
}

bool Prediction(PlanParts& p, Random& random) {
  Duration& time = p.plan.predicted_step_time;
  p.plan.lower_bound = kZero;
  const Duration other[] = {Nanoseconds(1), time / 2, time / 10, 2 * time,
                            10 * time};
  const size_t k = Index(random, 5);
  // Copies to the host, whose time a plan does not have, are added to a bound.
  for (const auto& program : p.plan.programs) {
    for (const Instruction& i : program) {
      if (std::holds_alternative<Offload>(i) && k > 2) return false;
    }
  }
  time = other[k];
  return true;
}

bool ScaledDurations(PlanParts& p, Random& random) {
  const int64_t times = random.Between(2, 10);
  const bool up = random.Below(2) == 0;
  for (Task& task : p.tasks) {
    task.duration = up ? task.duration * times : task.duration / times;
  }
  return true;
}

// The next ones lead to what may be a plan of another job or batch.

// A plan does not say which transfers share a link: if some wait for each
// other, a nanosecond less is the time on another network, too.
bool PredictionByOne(PlanParts& p, Random& random) {
  p.plan.lower_bound = kZero;
  p.plan.predicted_step_time += Nanoseconds(random.Below(2) == 0 ? 1 : -1);
  return true;
}

bool OneDuration(PlanParts& p, Random& random) {
  Task& task = p.At(AnyTask(p, random));
  // The price of recomputation and the gaps of a pair are not checked.
  if (task.duration == kZero || task.recomputes || !task.overlaps.is_none()) {
    return false;
  }
  task.duration *= random.Between(2, 10);
  return true;
}

bool FrozenSize(PlanParts& p, Random& random) {
  std::vector<size_t> found;
  for (size_t e = 0; e < p.edges.size(); ++e) {
    const Dependency& d = p.edges[e];
    if (d.payload > Bytes(0) && p.At(d.from).pass == Pass::kForward &&
        Before(p, d.from, Pass::kBackward).is_none()) {
      found.push_back(e);
    }
  }
  if (found.empty()) return false;
  Dependency& d = p.edges[found[Index(random, found.size())]];
  (random.Below(2) == 0 ? d.rows : d.width) += 1;
  return true;
}

bool OtherTransfer(PlanParts& p, Random& random) {
  Dependency& d = p.edges[Index(random, p.edges.size())];
  if (d.delay == kZero) return false;
  if (random.Below(2) == 0) {
    d.delay += Nanoseconds(1);
  } else {
    d.occupancy = d.occupancy / 2;
  }
  return true;
}

bool OtherRankMemory(PlanParts& p, Random& random) {
  const auto rank = RankId(static_cast<int32_t>(random.Below(p.ranks.size())));
  RankMemory& memory = p.ranks[rank].memory;
  switch (random.Below(3)) {
    case 0:
      memory.limit += Bytes(1);
      break;
    case 1:
      memory.weights += Bytes(1);
      break;
    default:
      p.ranks[rank].epilogue += Nanoseconds(1);
  }
  return true;
}

std::pair<RankId, size_t> AnyPlace(const PlanParts& p, Random& random) {
  const auto rank =
      RankId(static_cast<int32_t>(random.Below(p.plan.programs.size())));
  return {rank, Index(random, p.plan.programs[rank].size())};
}

bool SwapInstructions(PlanParts& p, Random& random) {
  const auto [rank, k] = AnyPlace(p, random);
  auto& program = p.plan.programs[rank];
  const size_t other = std::min(program.size() - 1,
                                k + static_cast<size_t>(random.Between(1, 6)));
  std::swap(program[k], program[other]);
  return k != other;
}

bool DropInstruction(PlanParts& p, Random& random) {
  const auto [rank, k] = AnyPlace(p, random);
  auto& program = p.plan.programs[rank];
  program.erase(program.begin() + static_cast<ptrdiff_t>(k));
  return true;
}

bool RepeatInstruction(PlanParts& p, Random& random) {
  const auto [rank, k] = AnyPlace(p, random);
  auto& program = p.plan.programs[rank];
  const Instruction again = program[k];
  program.insert(program.begin() +
                     static_cast<ptrdiff_t>(Index(random, program.size() + 1)),
                 again);
  return true;
}

bool ToOtherRank(PlanParts& p, Random& random) {
  const auto [rank, k] = AnyPlace(p, random);
  const auto to =
      RankId(static_cast<int32_t>(random.Below(p.plan.programs.size())));
  if (to == rank) return false;
  auto& program = p.plan.programs[rank];
  const Instruction moved = program[k];
  if (std::holds_alternative<WaitSend>(moved)) return false;
  program.erase(program.begin() + static_cast<ptrdiff_t>(k));
  auto& other = p.plan.programs[to];
  other.insert(
      other.begin() + static_cast<ptrdiff_t>(Index(random, other.size() + 1)),
      moved);
  return true;
}

// Another task or edge in an instruction.
bool OtherObject(PlanParts& p, Random& random) {
  const auto [rank, k] = AnyPlace(p, random);
  const auto task = static_cast<int32_t>(Index(random, p.tasks.size()));
  const auto edge = static_cast<int32_t>(Index(random, p.edges.size()));
  Instruction& i = p.plan.programs[rank][k];
  const Instruction before = i;
  std::visit(Overloaded{[&](Compute& c) { c.task = TaskId(task); },
                        [&](Send& s) { s.edge = EdgeId(edge); },
                        [&](Recv& r) { r.edge = EdgeId(edge); },
                        [&](WaitRecv& w) { w.edge = EdgeId(edge); },
                        [&](WaitSend& w) { w.edge = EdgeId(edge); },
                        [&](Free& f) { f.edge = EdgeId(edge); },
                        [&](Offload& o) { o.payload += Bytes(1); },
                        [&](Fetch& f) { f.payload += Bytes(1); },
                        [](ReduceGradients&) {}, [](OptimizerStep&) {}},
             i);
  return i != before;
}

}  // namespace

const std::vector<Mutation>& Mutations() {
  static const auto* const mutations = [] {
    auto* const all = new std::vector<Mutation>{
        {"backward before its forward", BackwardFirst},
        {"backward before its forward, no edge", BackwardFirstWithoutEdge},
        {"weight gradient before its backward, no edge",
         WeightGradFirstWithoutEdge},
        {"duplicate pass", Duplicate},
        {"stage", OtherStage},
        {"module", OtherModule},
        {"kind", OtherKind},
        {"microbatch", OtherMicrobatch},
        {"sub-microbatch", OtherSubMicrobatch},
        {"names exchanged", SwappedNames},
        {"rank", OtherRank},
        {"missing pass", DropPass},
        {"missing edge", DropEdge},
        {"end of an edge", OtherEnd},
        {"size of a tensor", OtherSize},
        {"memory of a task", OtherMemory},
        {"form of a pass", OtherForm},
        {"predicted time", Prediction},
        {"all durations", ScaledDurations},
        {"instruction of another rank", ToOtherRank},
        {"instruction repeated", RepeatInstruction},
        {"predicted time by one", PredictionByOne, By::kJob},
        {"missing weight gradient", DropWeightGrad, By::kJob},
        {"one duration", OneDuration, By::kJob},
        {"second weight gradient in a pair", SecondPair, By::kJob},
        {"pair of passes", OtherPair, By::kJob},
        {"tensor without a gradient", FrozenSize, By::kJob},
        {"transfer", OtherTransfer, By::kJob},
        {"static memory", OtherRankMemory, By::kJob},
        {"missing edge of a stage", DropOwnEdge, By::kTime},
        {"instructions exchanged", SwapInstructions, By::kTime},
        {"instruction missing", DropInstruction, By::kTime},
        {"object of an instruction", OtherObject, By::kTime},
    };
    all->insert(all->end(), SubMicrobatchMutations().begin(),
                SubMicrobatchMutations().end());
    return all;
  }();
  return *mutations;
}

}  // namespace pipeloom::testing
