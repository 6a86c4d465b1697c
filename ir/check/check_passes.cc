#include "ir/check/check_passes.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom {
namespace {

// Largest number of a stage: more than any partition has, and small enough for
// a table.
constexpr int32_t kMaxStages = 1 << 20;

absl::Status Fail(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("plan: ", what));
}

// The passes of one stage on one sub-microbatch.
struct Group {
  TaskId forward{};
  TaskId backward{};
  TaskId weight_grad{};
};

// The stages of a module on one sub-microbatch: groups [begin, end).
struct SubRun {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t joined = 0;  // Runs of other modules that it depends on.
};

class PassCheck {
 public:
  explicit PassCheck(const ExecutionPlan& plan)
      : plan_(plan),
        graph_(plan.graph),
        group_of_(graph_.num_tasks(), -1),
        flows_(graph_.num_edges(), 0) {}

  absl::Status Run() {
    PIPELOOM_ASSIGN_OR_RETURN(const bool passes, CheckNames());
    if (!passes) return absl::OkStatus();
    PIPELOOM_RETURN_IF_ERROR(CheckStages());
    PIPELOOM_RETURN_IF_ERROR(CollectForwards());
    PIPELOOM_RETURN_IF_ERROR(CheckRuns());
    PIPELOOM_RETURN_IF_ERROR(AttachBackwards());
    PIPELOOM_RETURN_IF_ERROR(CheckForwardEdges());
    PIPELOOM_RETURN_IF_ERROR(CheckJoins());
    PIPELOOM_RETURN_IF_ERROR(CheckBackwardEdges());
    PIPELOOM_RETURN_IF_ERROR(CheckTrained());
    PIPELOOM_RETURN_IF_ERROR(CheckOrder());
    return CheckForms();
  }

 private:
  // The place of a stage, and the first task that says so.
  struct StagePlace {
    TaskId seen_in{};
    ModuleId module{};
    RankId rank{};
  };

  std::string Name(TaskId t) const {
    return absl::StrFormat("rank %d, %s", graph_.task(t).rank.value(),
                           DescribeTask(graph_, t));
  }
  const std::string& ModuleName(ModuleId m) const {
    return graph_.module_names()[static_cast<size_t>(m.value())];
  }
  const Task& ForwardOf(int32_t group) const {
    return graph_.task(groups_[static_cast<size_t>(group)].forward);
  }
  Group& At(int32_t group) { return groups_[static_cast<size_t>(group)]; }
  SubRun& RunOf(int32_t group) {
    return runs_[static_cast<size_t>(
        run_of_group_[static_cast<size_t>(group)])];
  }
  static std::tuple<MicrobatchId, ModuleId, int32_t, StageId> PlaceOf(
      const Task& task) {
    return {task.microbatch, task.module, task.sub_microbatch, task.stage};
  }
  static bool SamePlace(const Task& a, const Task& b) {
    return PlaceOf(a) == PlaceOf(b);
  }
  static bool CarriesNothing(const Dependency& d) {
    return d.payload == Bytes(0) && d.rows == 0 && d.width == 0;
  }

  // Returns false if the tasks are no passes.
  absl::StatusOr<bool> CheckNames() const {
    const auto named = [&](TaskId t) {
      const Task& task = graph_.task(t);
      return !task.stage.is_none() || !task.microbatch.is_none();
    };
    bool any = false;
    for (const TaskId t : graph_.task_ids()) any |= named(t);
    if (!any) return false;
    for (const TaskId t : graph_.task_ids()) {
      const Task& task = graph_.task(t);
      if (task.stage.is_none() || task.stage.value() >= kMaxStages ||
          task.microbatch.is_none() || task.sub_microbatch < 0) {
        return Fail(absl::StrFormat(
            "%s: stage %d must be in [0, %d), microbatch %d and sub-microbatch "
            "%d >= 0",
            Name(t), task.stage.value(), kMaxStages, task.microbatch.value(),
            task.sub_microbatch));
      }
    }
    return true;
  }

  // Checks that a stage is of one module and on one rank.
  absl::Status CheckStages() {
    int32_t num_stages = 0;
    for (const Task& task : graph_.tasks()) {
      num_stages = std::max(num_stages, task.stage.value() + 1);
    }
    IdVector<StageId, StagePlace> places(num_stages);
    for (const TaskId t : graph_.task_ids()) {
      const Task& task = graph_.task(t);
      StagePlace& place = places[task.stage];
      if (place.seen_in.is_none()) place = {t, task.module, task.rank};
      if (place.module == task.module && place.rank == task.rank) continue;
      return Fail(absl::StrFormat(
          "%s: stage %d is of module %d (%s) and on rank %d by task %d, not of "
          "module %d and on rank %d",
          Name(t), task.stage.value(), place.module.value(),
          ModuleName(place.module), place.rank.value(), place.seen_in.value(),
          task.module.value(), task.rank.value()));
    }
    stages_of_.resize(static_cast<int32_t>(graph_.module_names().size()));
    for (const StageId s : places.ids()) {
      if (places[s].seen_in.is_none()) continue;
      stages_of_[places[s].module].push_back(s);
    }
    return absl::OkStatus();
  }

  // Numbers the forwards by microbatch, module, sub-microbatch and stage.
  absl::Status CollectForwards() {
    for (const TaskId t : graph_.task_ids()) {
      if (graph_.task(t).pass == Pass::kForward) groups_.push_back({t});
    }
    const auto less = [&](const Group& a, const Group& b) {
      return PlaceOf(graph_.task(a.forward)) < PlaceOf(graph_.task(b.forward));
    };
    if (!std::is_sorted(groups_.begin(), groups_.end(), less)) {
      std::stable_sort(groups_.begin(), groups_.end(), less);
    }
    run_of_group_.resize(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      const TaskId t = groups_[g].forward;
      const Task& task = graph_.task(t);
      group_of_[t] = static_cast<int32_t>(g);
      if (g > 0 && SamePlace(task, graph_.task(groups_[g - 1].forward))) {
        return Fail(absl::StrFormat("%s: task %d is the same pass already",
                                    Name(t), groups_[g - 1].forward.value()));
      }
      const bool goes_on = g > 0 && [&](const Task& before) {
        return task.microbatch == before.microbatch &&
               task.module == before.module &&
               task.sub_microbatch == before.sub_microbatch;
      }(graph_.task(groups_[g - 1].forward));
      if (!goes_on) runs_.push_back({.begin = static_cast<int32_t>(g)});
      runs_.back().end = static_cast<int32_t>(g) + 1;
      run_of_group_[g] = static_cast<int32_t>(runs_.size()) - 1;
    }
    return absl::OkStatus();
  }

  // Checks that runs have all stages, and that sub-microbatches count from 0.
  absl::Status CheckRuns() const {
    int32_t microbatch = -1;
    ModuleId module;
    int32_t next_sub = 0;
    for (const SubRun& run : runs_) {
      const Task& first = ForwardOf(run.begin);
      if (first.microbatch.value() != microbatch) module = ModuleId();
      microbatch = first.microbatch.value();
      if (first.module != module) next_sub = 0;
      module = first.module;
      if (first.sub_microbatch != next_sub) {
        return Fail(absl::StrFormat(
            "%s: its sub-microbatch is %d; the next one of its module is %d",
            Name(groups_[static_cast<size_t>(run.begin)].forward),
            first.sub_microbatch, next_sub));
      }
      ++next_sub;
      const std::vector<StageId>& stages = stages_of_[module];
      for (size_t k = 0; k < stages.size(); ++k) {
        const int32_t g = run.begin + static_cast<int32_t>(k);
        if (g < run.end && ForwardOf(g).stage == stages[k]) continue;
        return Fail(absl::StrFormat(
            "module %s, microbatch %d, sub-microbatch %d: it has no forward on "
            "stage %d, which its module has elsewhere",
            ModuleName(module), microbatch, first.sub_microbatch,
            stages[k].value()));
      }
    }
    return absl::OkStatus();
  }

  // Finds a task's own pass before, and its group, by the edge from it or by
  // its place.
  absl::StatusOr<int32_t> OwnGroup(TaskId t, Pass before) {
    const Task& task = graph_.task(t);
    int32_t group = -1;
    for (const EdgeId e : graph_.incoming(t)) {
      const TaskId from = graph_.edge(e).from;
      const Task& other = graph_.task(from);
      if (other.pass != before || !SamePlace(task, other)) continue;
      if (group >= 0) {
        return Fail(
            absl::StrFormat("%s: edge %d depends on task %d a second "
                            "time; once is right",
                            Name(t), e.value(), from.value()));
      }
      group = group_of_[from];
    }
    if (group >= 0) return group;
    // Without that edge the order of the program has to do.
    const auto less = [&](const Group& a, const Task& b) {
      return PlaceOf(graph_.task(a.forward)) < PlaceOf(b);
    };
    const auto found =
        std::lower_bound(groups_.begin(), groups_.end(), task, less);
    if (found != groups_.end() &&
        SamePlace(graph_.task(found->forward), task) &&
        (before == Pass::kForward || !found->backward.is_none())) {
      ordered_.emplace_back(
          before == Pass::kForward ? found->forward : found->backward, t);
      return static_cast<int32_t>(found - groups_.begin());
    }
    return Fail(absl::StrFormat(
        "%s: there is no %s of stage %d, microbatch %d, sub-microbatch %d for "
        "it",
        Name(t), before == Pass::kForward ? "forward" : "backward",
        task.stage.value(), task.microbatch.value(), task.sub_microbatch));
  }

  absl::Status AttachBackwards() {
    for (const TaskId t : graph_.task_ids()) {
      const Pass pass = graph_.task(t).pass;
      if (pass == Pass::kForward) continue;
      const bool splits = pass == Pass::kWeightGrad;
      PIPELOOM_ASSIGN_OR_RETURN(
          const int32_t g,
          OwnGroup(t, splits ? Pass::kBackward : Pass::kForward));
      TaskId& slot = splits ? At(g).weight_grad : At(g).backward;
      if (!slot.is_none()) {
        return Fail(absl::StrFormat("%s: task %d is the same pass already",
                                    Name(t), slot.value()));
      }
      slot = t;
      group_of_[t] = g;
    }
    return absl::OkStatus();
  }

  absl::Status NoSuchFlow(EdgeId e, const char* allowed) const {
    const Dependency& d = graph_.edge(e);
    return Fail(absl::StrFormat(
        "edge %d from task %d to task %d has %d B, %d rows and a width of %d; "
        "%s depends on %s, and any other edge carries nothing",
        e.value(), d.from.value(), d.to.value(), d.payload.count(), d.rows,
        d.width, DescribeTask(graph_, d.to), allowed));
  }

  // Checks what forwards depend on, and marks the edges along which tensors
  // go.
  absl::Status CheckForwardEdges() {
    std::vector<int32_t> joined_by(runs_.size(), -1);
    for (int32_t g = 0; g < static_cast<int32_t>(groups_.size()); ++g) {
      const TaskId t = At(g).forward;
      const Task& task = graph_.task(t);
      SubRun& run = RunOf(g);
      bool chained = g == run.begin;
      for (const EdgeId e : graph_.incoming(t)) {
        const TaskId from = graph_.edge(e).from;
        const Task& other = graph_.task(from);
        const bool forward = other.pass == Pass::kForward;
        const int32_t source = group_of_[from];
        if (forward && !chained && source == g - 1) {
          chained = true;
          flows_[e] = 1;
          continue;
        }
        if (forward && g == run.begin && other.module != task.module &&
            other.microbatch == task.microbatch &&
            source + 1 == RunOf(source).end) {
          int32_t& by = joined_by[static_cast<size_t>(
              run_of_group_[static_cast<size_t>(source)])];
          if (by != g) {
            by = g;
            ++run.joined;
            flows_[e] = 1;
            feeds_.insert({other.module, task.module});
            continue;
          }
        }
        if (!CarriesNothing(graph_.edge(e))) {
          return NoSuchFlow(e, g == run.begin
                                   ? "the last stages of other modules in its "
                                     "microbatch, once each"
                                   : "the stage before, once");
        }
      }
      if (!chained) {
        return Fail(absl::StrFormat(
            "%s: no edge makes it depend on the stage before, task %d", Name(t),
            At(g - 1).forward.value()));
      }
    }
    return absl::OkStatus();
  }

  // Checks that each sub-microbatch waits for all those of the modules that
  // feed its own.
  absl::Status CheckJoins() const {
    IdVector<ModuleId, int32_t> subs(stages_of_.size(), 0);
    for (size_t r = 0; r < runs_.size();) {
      const MicrobatchId microbatch = ForwardOf(runs_[r].begin).microbatch;
      size_t end = r;
      for (const ModuleId m : subs.ids()) subs[m] = 0;
      for (; end < runs_.size() &&
             ForwardOf(runs_[end].begin).microbatch == microbatch;
           ++end) {
        ++subs[ForwardOf(runs_[end].begin).module];
      }
      for (; r < end; ++r) {
        const ModuleId module = ForwardOf(runs_[r].begin).module;
        int32_t expected = 0;
        for (const auto& [from, to] : feeds_) {
          if (to == module) expected += subs[from];
        }
        if (runs_[r].joined == expected) continue;
        return Fail(absl::StrFormat(
            "%s: it depends on %d sub-microbatches of the modules that feed "
            "module %s; its microbatch has %d",
            Name(groups_[static_cast<size_t>(runs_[r].begin)].forward),
            runs_[r].joined, ModuleName(module), expected));
      }
    }
    return absl::OkStatus();
  }

  // Checks that backwards depend on the backwards of what their forwards hand
  // their outputs to.
  absl::Status CheckBackwardEdges() {
    std::vector<EdgeId> forward_edge(groups_.size());
    for (int32_t g = 0; g < static_cast<int32_t>(groups_.size()); ++g) {
      const Group& group = At(g);
      if (group.backward.is_none()) continue;
      int32_t missing = 0;
      for (const EdgeId e : graph_.outgoing(group.forward)) {
        if (flows_[e] == 0) continue;
        const int32_t to = group_of_[graph_.edge(e).to];
        if (At(to).backward.is_none()) {
          return Fail(absl::StrFormat(
              "%s: it has a backward, task %d, but task %d, which takes its "
              "output, has none",
              Name(group.forward), group.backward.value(),
              At(to).forward.value()));
        }
        forward_edge[static_cast<size_t>(to)] = e;
        ++missing;
      }
      for (const EdgeId e : graph_.incoming(group.backward)) {
        const Dependency& d = graph_.edge(e);
        const TaskId from = d.from;
        if (graph_.task(from).pass == Pass::kBackward) {
          EdgeId& mirrored = forward_edge[static_cast<size_t>(group_of_[from])];
          if (!mirrored.is_none() &&
              graph_.edge(mirrored).from == group.forward) {
            PIPELOOM_RETURN_IF_ERROR(CheckMirrored(mirrored, e));
            mirrored = EdgeId();
            --missing;
            continue;
          }
        }
        if (!CarriesNothing(d)) {
          return NoSuchFlow(
              e, "the backwards of what takes its forward's output, once each");
        }
      }
      if (missing == 0) continue;
      for (const EdgeId e : graph_.outgoing(group.forward)) {
        if (flows_[e] == 0) continue;
        const int32_t to = group_of_[graph_.edge(e).to];
        if (forward_edge[static_cast<size_t>(to)] != e) continue;
        return Fail(absl::StrFormat(
            "%s: no edge makes it depend on task %d, whose gradient it takes: "
            "its forward hands its output to task %d (edge %d)",
            Name(group.backward), At(to).backward.value(),
            At(to).forward.value(), e.value()));
      }
    }
    return absl::OkStatus();
  }

  // A gradient has the size of the tensor that it is of.
  absl::Status CheckMirrored(EdgeId forward, EdgeId backward) const {
    const Dependency& a = graph_.edge(forward);
    const Dependency& b = graph_.edge(backward);
    if (a.payload == b.payload && a.rows == b.rows && a.width == b.width) {
      return absl::OkStatus();
    }
    return Fail(absl::StrFormat(
        "edge %d from task %d to task %d has %d B, %d rows and a width of %d; "
        "the tensor that it is the gradient of, edge %d, has %d B, %d rows and "
        "a width of %d",
        backward.value(), b.from.value(), b.to.value(), b.payload.count(),
        b.rows, b.width, forward.value(), a.payload.count(), a.rows, a.width));
  }

  // Checks in which microbatches the modules have backwards.
  absl::Status CheckTrained() const {
    enum State { kUnknown, kFrozen, kTrained };
    IdVector<ModuleId, State> state(stages_of_.size(), kUnknown);
    IdVector<ModuleId, TaskId> seen_in(stages_of_.size());
    // A weight gradient shows that its module is trained.
    for (const Group& group : groups_) {
      if (group.weight_grad.is_none()) continue;
      const ModuleId m = graph_.task(group.forward).module;
      if (state[m] == kUnknown) seen_in[m] = group.weight_grad;
      state[m] = kTrained;
    }
    for (size_t r = 0; r < runs_.size();) {
      const Task& first = ForwardOf(runs_[r].begin);
      const int32_t begin = runs_[r].begin;
      bool fed = false;
      int32_t end = begin;
      for (; r < runs_.size(); ++r) {
        const Task& other = ForwardOf(runs_[r].begin);
        if (other.microbatch != first.microbatch ||
            other.module != first.module) {
          break;
        }
        end = runs_[r].end;
      }
      const TaskId forward = groups_[static_cast<size_t>(begin)].forward;
      for (const EdgeId e : graph_.incoming(forward)) {
        if (flows_[e] == 0) continue;
        const int32_t from = group_of_[graph_.edge(e).from];
        fed |= !groups_[static_cast<size_t>(from)].backward.is_none();
      }
      const bool has = !groups_[static_cast<size_t>(begin)].backward.is_none();
      for (int32_t g = begin; g < end; ++g) {
        const Group& group = groups_[static_cast<size_t>(g)];
        if (group.backward.is_none() != has) continue;
        return Fail(absl::StrFormat(
            "%s: it has %s backward; task %d of the same module and microbatch "
            "has %s",
            Name(group.forward), has ? "no" : "a", forward.value(),
            has ? "one" : "none"));
      }
      if (fed && !has) {
        return Fail(absl::StrFormat(
            "%s: it has no backward, but what feeds it in its microbatch has",
            Name(forward)));
      }
      if (fed) continue;
      State& module = state[first.module];
      if (module == kUnknown) {
        module = has ? kTrained : kFrozen;
        seen_in[first.module] = forward;
      }
      if ((module == kTrained) != has) {
        return Fail(absl::StrFormat(
            "%s: it has %s backward; by task %d its module is %s",
            Name(forward), has ? "a" : "no", seen_in[first.module].value(),
            has ? "frozen" : "trained"));
      }
    }
    return absl::OkStatus();
  }

  // Checks the order of passes between which there is no edge.
  absl::Status CheckOrder() const {
    if (ordered_.empty()) return absl::OkStatus();
    IdVector<TaskId, size_t> place(graph_.num_tasks(), 0);
    IdVector<TaskId, bool> copied(graph_.num_tasks(), false);
    for (const std::vector<Instruction>& program : plan_.programs) {
      for (size_t k = 0; k < program.size(); ++k) {
        const auto* compute = std::get_if<Compute>(&program[k]);
        if (compute != nullptr && place.Contains(compute->task)) {
          place[compute->task] = k;
        }
        const auto* copy = std::get_if<Offload>(&program[k]);
        if (copy != nullptr && place.Contains(copy->task)) {
          copied[copy->task] = true;
        }
      }
    }
    for (const auto& [before, after] : ordered_) {
      if (copied[before]) {
        return Fail(absl::StrFormat(
            "%s: no edge makes it wait for the fetch of task %d, which is "
            "offloaded",
            Name(after), before.value()));
      }
      if (place[before] <= place[after]) continue;
      return Fail(absl::StrFormat(
          "%s is computed by instruction %d, before task %d, on which it "
          "depends, by instruction %d",
          Name(after), place[after], before.value(), place[before]));
    }
    return absl::OkStatus();
  }

  // Checks the memory and the forms of the passes.
  absl::Status CheckForms() const {
    for (const Group& group : groups_) {
      Bytes taken{};
      Bytes given{};
      for (const TaskId t :
           {group.forward, group.backward, group.weight_grad}) {
        if (t.is_none()) continue;
        taken += graph_.task(t).alloc;
        given += graph_.task(t).free;
      }
      if (taken != given) {
        return Fail(absl::StrFormat(
            "%s: with its backward%s it takes %d B and gives back %d B; both "
            "must be equal",
            Name(group.forward),
            group.weight_grad.is_none() ? "" : " and weight gradient",
            taken.count(), given.count()));
      }
    }
    for (const TaskId t : graph_.task_ids()) {
      const Task& task = graph_.task(t);
      if (task.recomputes && task.pass != Pass::kBackward) {
        return Fail(absl::StrCat(
            Name(t),
            ": it recomputes; only a backward runs its forward again"));
      }
    }
    return absl::OkStatus();
  }

  const ExecutionPlan& plan_;
  const StageGraph& graph_;
  IdVector<ModuleId, std::vector<StageId>> stages_of_{};  // Ascending.
  // Sorted by microbatch, module, sub-microbatch and stage.
  std::vector<Group> groups_{};
  std::vector<SubRun> runs_{};  // In the order of groups.
  std::vector<int32_t> run_of_group_{};
  IdVector<TaskId, int32_t> group_of_;
  IdVector<EdgeId, uint8_t> flows_;  // 1: carries an output to its consumer.
  std::set<std::pair<ModuleId, ModuleId>> feeds_{};
  std::vector<std::pair<TaskId, TaskId>> ordered_{};  // In programs, not edges.
};

}  // namespace

absl::Status CheckPasses(const ExecutionPlan& plan) {
  return PassCheck(plan).Run();
}

}  // namespace pipeloom
