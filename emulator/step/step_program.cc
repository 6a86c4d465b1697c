#include "emulator/step/step_program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/overloaded.h"
#include "base/status_macros.h"
#include "emulator/step/huge_pages.h"

namespace pipeloom::emulator {
namespace {

constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

absl::Status CheckFactor(const char* field, double factor) {
  if (factor > 0 && factor <= 1e6) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: factor is %g; it must be in (0, 1e6]", field, factor));
}

absl::Status CheckRank(const char* field, RankId rank, int32_t num_ranks) {
  if (rank.value() >= 0 && rank.value() < num_ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: rank %d does not exist; the plan has %d ranks",
                      field, rank.value(), num_ranks));
}

const SharedLinks& LinksOf(const ExecutionPlan& plan,
                           const EmulateOptions& options) {
  return options.links.has_value() ? *options.links : plan.links;
}

absl::Status CheckOptions(const EmulateOptions& options, int32_t num_ranks) {
  for (const SlowRank& slow : options.slow_ranks) {
    PIPELOOM_RETURN_IF_ERROR(CheckRank("slow_ranks", slow.rank, num_ranks));
    PIPELOOM_RETURN_IF_ERROR(CheckFactor("slow_ranks", slow.factor));
  }
  for (const SlowLink& slow : options.slow_links) {
    PIPELOOM_RETURN_IF_ERROR(CheckRank("slow_links", slow.from, num_ranks));
    PIPELOOM_RETURN_IF_ERROR(CheckRank("slow_links", slow.to, num_ranks));
    if (slow.from == slow.to) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "slow_links: a link from rank %d to itself; it must join two ranks",
          slow.from.value()));
    }
    PIPELOOM_RETURN_IF_ERROR(CheckFactor("slow_links", slow.factor));
    if (slow.added < kZero) {
      return absl::InvalidArgumentError(
          absl::StrFormat("slow_links: added is %.3f us; it must be >= 0",
                          ToMicroseconds(slow.added)));
    }
  }
  return absl::OkStatus();
}

// Values of `place_of_edge`: a route, later a transfer with this bit, or
// kInsideRank for edges inside a rank.
constexpr uint32_t kInsideRank = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kIsTransfer = uint32_t{1} << 31;

class Compiler {
 public:
  Compiler(const ExecutionPlan& plan, const EmulateOptions& options,
           StepProgram* program, CompileScratch* scratch)
      : plan_(plan),
        graph_(plan.graph),
        options_(options),
        links_(LinksOf(plan, options)),
        out_(*program),
        place_(scratch->place_of_edge),
        ends_(scratch->ends),
        made_(scratch->made),
        taken_(scratch->taken) {}

  absl::Status Run() {
    size_t instructions = 0;
    for (const auto& program : plan_.programs) instructions += program.size();
    if (instructions >= StepOp::kMaxIndex ||
        graph_.num_edges() >= static_cast<int32_t>(StepOp::kMaxIndex)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the plan has %d instructions and %d edges; at most %d can be "
          "emulated",
          instructions, graph_.num_edges(), StepOp::kMaxIndex - 1));
    }
    Clear();
    RouteEdges();
    const auto tasks = static_cast<size_t>(graph_.num_tasks());
    const auto edges = static_cast<size_t>(graph_.num_edges());
    Reserve(instructions, &out_.ops);
    out_.ops.resize(instructions);
    next_op_ = out_.ops.data();
    Reserve(tasks, &out_.task_of_slot);
    Reserve(tasks, &out_.memory_of_slot);
    Reserve(edges, &out_.transfers);
    Reserve(edges, &out_.payloads);
    Reserve(edges, &ends_);
    out_.op_begin.push_back(0);
    for (const RankId rank : graph_.rank_ids()) {
      PIPELOOM_RETURN_IF_ERROR(CompileRank(rank));
    }
    out_.order_free = IsOrderFree();
    return absl::OkStatus();
  }

 private:
  using Ends = CompileScratch::Ends;

  void Clear() {
    out_.num_ranks = graph_.num_ranks();
    out_.host_link = links_.host_link_of_rank;
    out_.fair_links = links_.sharing == LinkSharing::kFairNic;
    out_.num_links = 0;
    out_.op_begin.clear();
    out_.task_of_slot.clear();
    out_.memory_of_slot.clear();
    out_.transfers.clear();
    out_.payloads.clear();
    out_.routes.clear();
    out_.copies.clear();
    out_.guards.clear();
    out_.local_edges.clear();
    out_.fixed_spans.clear();
    out_.memory_steps.clear();
    ends_.clear();
  }

  void RouteEdges() {
    for (const int32_t n : links_.nic_of_rank) {
      num_nics_ = std::max(num_nics_, n + 1);
    }
    num_nics_ = std::max(num_nics_, graph_.num_ranks());
    if (links_.sharing == LinkSharing::kPerRank) {
      out_.num_links = 2 * graph_.num_ranks();
    } else if (links_.sharing >= LinkSharing::kPerNic) {
      out_.num_links = 2 * num_nics_;
    }
    routes_from_.resize(static_cast<size_t>(graph_.num_ranks()));
    place_.clear();
    Reserve(static_cast<size_t>(graph_.num_edges()), &place_);
    made_.assign(static_cast<size_t>(graph_.num_tasks()), Bytes(0));
    taken_.assign(static_cast<size_t>(graph_.num_tasks()), Bytes(0));
    for (const Dependency& d : graph_.edges()) {
      const int32_t from = graph_.task(d.from).rank.value();
      const int32_t to = graph_.task(d.to).rank.value();
      made_[static_cast<size_t>(d.from.value())] += d.payload;
      if (from == to) {
        taken_[static_cast<size_t>(d.to.value())] += d.payload;
        has_local_delay_ |= d.delay > kZero;
        place_.push_back(kInsideRank);
      } else {
        place_.push_back(RouteOf(from, to));
      }
    }
  }

  uint32_t RouteOf(int32_t from, int32_t to) {
    std::vector<uint32_t>& known = routes_from_[static_cast<size_t>(from)];
    for (const uint32_t route : known) {
      if (out_.routes[route].to == to) return route;
    }
    known.push_back(static_cast<uint32_t>(out_.routes.size()));
    EdgeRoute route{.from = from, .to = to};
    const auto nic = [&](int32_t rank) {
      return links_.nic_of_rank.empty()
                 ? rank
                 : links_.nic_of_rank[static_cast<size_t>(rank)];
    };
    switch (links_.sharing) {
      case LinkSharing::kNone:
        break;
      case LinkSharing::kPerPair:
        route.link_out = out_.num_links++;
        break;
      case LinkSharing::kBothWays:
        route.link_out = LinkBack(from, to);
        break;
      case LinkSharing::kPerRank:
        route.link_out = 2 * from;
        route.link_in = 2 * to + 1;
        break;
      case LinkSharing::kPerNic:
      case LinkSharing::kFairNic:
        if (nic(from) == nic(to) || SameNode(from, to)) break;
        route.link_out = 2 * nic(from);
        route.link_in = 2 * nic(to) + 1;
        break;
    }
    out_.routes.push_back(route);
    return known.back();
  }

  // Returns the link of the opposite route, or a new one if there is none yet.
  int32_t LinkBack(int32_t from, int32_t to) {
    for (const uint32_t route : routes_from_[static_cast<size_t>(to)]) {
      if (out_.routes[route].to == from) return out_.routes[route].link_out;
    }
    return out_.num_links++;
  }

  bool SameNode(int32_t a, int32_t b) const {
    if (links_.node_of_rank.empty()) return false;
    const int32_t apart = std::abs(links_.node_of_rank[static_cast<size_t>(a)] -
                                   links_.node_of_rank[static_cast<size_t>(b)]);
    return apart == 0 ||
           (links_.ring_nodes > 0 &&
            std::min(apart, links_.ring_nodes - apart) <= links_.ring_hops);
  }

  absl::Status CompileRank(RankId rank) {
    reduced_ = false;
    spans_ = 0;
    const RankMemory& held = graph_.rank(rank).memory;
    steps_ = static_cast<uint32_t>(
        (held.weights != Bytes(0)) + (held.gradients != Bytes(0)) +
        (held.optimizer != Bytes(0)) + (held.overhead != Bytes(0)));
    sends_of_.assign(static_cast<size_t>(out_.num_links), 0);
    const std::vector<Instruction>& program = plan_.programs[rank];
    for (size_t k = 0; k < program.size(); ++k) {
      const bool ok = std::visit(
          [&](const auto& instruction) {
            return Compile(rank, instruction, next_op_);
          },
          program[k]);
      if (!ok) return Fault(rank, k);
      ++next_op_;
    }
    out_.op_begin.push_back(static_cast<uint32_t>(next_op_ - out_.ops.data()));
    out_.fixed_spans.push_back(spans_);
    out_.memory_steps.push_back(steps_);
    fetched_of_.clear();
    return absl::OkStatus();
  }

  bool Compile(RankId rank, const Compute& i, StepOp* op) {
    if (!IsOwn(i.task, rank)) return false;
    const Task& task = graph_.task(i.task);
    const auto slot = static_cast<uint32_t>(out_.task_of_slot.size());
    out_.task_of_slot.push_back(i.task);
    const Bytes made = made_[static_cast<size_t>(i.task.value())];
    const Bytes taken = taken_[static_cast<size_t>(i.task.value())];
    out_.memory_of_slot.push_back({task.alloc, task.free, made, taken});
    *op = {slot, OpCode::kCompute};
    if (has_local_delay_ || !fetched_of_.empty()) AddGuard(i.task, slot, op);
    if (has_local_delay_) {
      slot_of_task_.resize(static_cast<size_t>(graph_.num_tasks()), kNever);
      slot_of_task_[static_cast<size_t>(i.task.value())] = slot;
    }
    ++spans_;
    steps_ += static_cast<uint32_t>((task.alloc != Bytes(0)) +
                                    (task.free != Bytes(0)) +
                                    (made != Bytes(0)) + (taken != Bytes(0)));
    return true;
  }

  void AddGuard(TaskId task, uint32_t slot, StepOp* op) {
    Guard guard{.slot = slot};
    for (const EdgeId e : graph_.incoming(task)) {
      const Dependency& d = graph_.edge(e);
      for (const auto& [fetched, copy] : fetched_of_) {
        if (fetched == d.from) guard.fetches.push_back(copy);
      }
      if (d.delay <= kZero ||
          graph_.task(d.from).rank != graph_.task(task).rank) {
        continue;
      }
      const auto from = static_cast<size_t>(d.from.value());
      if (from < slot_of_task_.size() && slot_of_task_[from] != kNever) {
        const auto index = static_cast<uint32_t>(out_.local_edges.size());
        out_.local_edges.push_back(e);
        guard.locals.push_back({slot_of_task_[from], index, e});
      }
    }
    if (guard.fetches.empty() && guard.locals.empty()) return;
    *op = {static_cast<uint32_t>(out_.guards.size()), OpCode::kComputeGuarded};
    out_.guards.push_back(std::move(guard));
  }

  bool Compile(RankId rank, const Send& i, StepOp* op) {
    uint32_t at = 0;
    if (!FindEnd<true>(i.edge, rank, &at)) return false;
    if (ends_[at].sent != 0) return false;
    ends_[at].sent = NextOnLink(at);
    *op = {at, links_.blocking_sends ? OpCode::kBlockingSend : OpCode::kSend};
    ++spans_;
    return true;
  }
  bool Compile(RankId rank, const Recv& i, StepOp* op) {
    uint32_t at = 0;
    if (!FindEnd<false>(i.edge, rank, &at)) return false;
    if (ends_[at].received != 0) return false;
    ends_[at].received = NextOnLink(at);
    *op = {at, OpCode::kRecv};
    steps_ += out_.payloads[at] != Bytes(0);
    return true;
  }
  bool Compile(RankId rank, const WaitRecv& i, StepOp* op) {
    uint32_t at = 0;
    const bool ok = FindEnd<false>(i.edge, rank, &at);
    *op = {at, OpCode::kWaitRecv};
    return ok;
  }
  bool Compile(RankId rank, const WaitSend& i, StepOp* op) {
    uint32_t at = 0;
    const bool ok = FindEnd<true>(i.edge, rank, &at);
    *op = {at, OpCode::kWaitSend};
    if (ok) steps_ += out_.payloads[at] != Bytes(0);
    return ok;
  }
  bool Compile(RankId rank, const Free& i, StepOp* op) {
    uint32_t at = 0;
    if (!FindEnd<false>(i.edge, rank, &at)) return false;
    *op = {at, OpCode::kFree};
    steps_ += out_.payloads[at] != Bytes(0);
    return true;
  }
  bool Compile(RankId rank, const Offload& i, StepOp* op) {
    return AddCopy(rank, i.task, i.payload, OpCode::kOffload, op);
  }
  bool Compile(RankId rank, const Fetch& i, StepOp* op) {
    if (!AddCopy(rank, i.task, i.payload, OpCode::kFetch, op)) return false;
    std::erase_if(fetched_of_,
                  [&](const auto& item) { return item.first == i.task; });
    fetched_of_.emplace_back(i.task, uint32_t{op->index});
    return true;
  }
  bool Compile(RankId, const ReduceGradients&, StepOp* op) {
    reduced_ = true;
    *op = {0, OpCode::kEpilogue};
    ++spans_;
    return true;
  }
  bool Compile(RankId, const OptimizerStep&, StepOp* op) {
    *op = {0, reduced_ ? OpCode::kNothing : OpCode::kEpilogue};
    spans_ += !reduced_;
    return true;
  }

  bool AddCopy(RankId rank, TaskId task, Bytes payload, OpCode code,
               StepOp* op) {
    if (!IsOwn(task, rank)) return false;
    HostCopy copy{.task = task, .payload = payload};
    for (const EdgeId e : graph_.outgoing(task)) {
      const bool local = graph_.task(graph_.edge(e).to).rank == rank;
      if (copy.edge.is_none() || local) copy.edge = e;
      if (local) break;
    }
    *op = {static_cast<uint32_t>(out_.copies.size()), code};
    out_.copies.push_back(copy);
    steps_ += payload != Bytes(0);
    return true;
  }

  bool IsOwn(TaskId task, RankId rank) const {
    return graph_.tasks().Contains(task) && graph_.task(task).rank == rank;
  }
  // Finds the transfer of an edge that leaves (or enters) the rank to (or from)
  // another one. Returns false if the edge does not.
  template <bool kAtProducer>
  bool FindEnd(EdgeId edge, RankId rank, uint32_t* at) {
    if (static_cast<size_t>(edge.value()) >= place_.size()) return false;
    const uint32_t place = place_[static_cast<size_t>(edge.value())];
    if ((place & kIsTransfer) == 0) {
      *at = AddTransfer(edge, place);
    } else {
      if (place == kInsideRank) return false;
      *at = place & ~kIsTransfer;
    }
    const Ends& ends = ends_[*at];
    return (kAtProducer ? ends.from : ends.to) == rank.value();
  }

  uint32_t AddTransfer(EdgeId edge, uint32_t route) {
    const auto next = static_cast<uint32_t>(out_.transfers.size());
    out_.transfers.push_back({edge, route});
    out_.payloads.push_back(graph_.edge(edge).payload);
    const EdgeRoute& r = out_.routes[route];
    ends_.push_back({.from = r.from, .to = r.to, .link = r.link_out});
    place_[static_cast<size_t>(edge.value())] = next | kIsTransfer;
    return next;
  }

  uint32_t NextOnLink(uint32_t transfer) {
    const int32_t link = ends_[transfer].link;
    return link < 0 ? 1 : ++sends_of_[static_cast<size_t>(link)];
  }

  template <typename T>
  static void Reserve(size_t size, std::vector<T>* list) {
    if (list->capacity() >= size) return;
    list->reserve(size);
    AdviseHugePages(list->data(), size * sizeof(T));
  }

  bool IsOrderFree() const {
    if (!out_.copies.empty() && !out_.host_link.empty()) return false;
    for (const SlowLink& slow : options_.slow_links) {
      // Its sends reserve the link, whose state then depends on the time.
      if (slow.ahead && slow.added > kZero) return false;
    }
    if (links_.sharing == LinkSharing::kNone) return true;
    if (links_.sharing != LinkSharing::kPerPair) return false;
    // The link of a pair has one sender and one receiver: if both list its
    // transfers in one order, they become ready in that order.
    return std::all_of(ends_.begin(), ends_.end(), [](const Ends& ends) {
      return ends.sent == ends.received;
    });
  }

  absl::Status Fault(RankId rank, size_t index) const {
    return absl::FailedPreconditionError(absl::StrFormat(
        "rank %d, instruction %d (%s): it names nothing of this rank, or "
        "comes twice; ValidateExecutionPlan says more",
        rank.value(), index, DescribeInstruction(plan_.programs[rank][index])));
  }

  const ExecutionPlan& plan_;
  const StageGraph& graph_;
  const EmulateOptions& options_;
  const SharedLinks& links_;
  StepProgram& out_;
  std::vector<uint32_t>& place_;
  std::vector<Ends>& ends_;
  std::vector<Bytes>& made_;
  std::vector<Bytes>& taken_;
  std::vector<std::vector<uint32_t>> routes_from_{};  // Indexed by rank.
  int32_t num_nics_ = 0;
  // Number of the rank's transfers so far on each link. A rank sends on some
  // links of pairs and receives on others.
  std::vector<uint32_t> sends_of_{};
  std::vector<std::pair<TaskId, uint32_t>> fetched_of_{};
  std::vector<uint32_t> slot_of_task_{};
  bool has_local_delay_ = false;
  bool reduced_ = false;
  StepOp* next_op_ = nullptr;
  uint32_t spans_ = 0;
  uint32_t steps_ = 0;
};

int64_t Scaled(Duration time, double factor) {
  if (factor == 1) return time.count();
  return std::llround(static_cast<double>(time.count()) * factor);
}

}  // namespace

absl::Status CompileStep(const ExecutionPlan& plan,
                         const EmulateOptions& options, StepProgram* program,
                         CompileScratch* scratch) {
  if (plan.programs.size() != plan.graph.num_ranks()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the plan has %d programs; its graph has %d ranks",
                        plan.programs.size(), plan.graph.num_ranks()));
  }
  PIPELOOM_RETURN_IF_ERROR(
      CheckLinks(LinksOf(plan, options), plan.graph.num_ranks()));
  PIPELOOM_RETURN_IF_ERROR(CheckOptions(options, plan.graph.num_ranks()));
  return Compiler(plan, options, program, scratch).Run();
}

absl::StatusOr<StepProgram> CompileStep(const ExecutionPlan& plan,
                                        const EmulateOptions& options) {
  StepProgram program;
  CompileScratch scratch;
  PIPELOOM_RETURN_IF_ERROR(CompileStep(plan, options, &program, &scratch));
  return program;
}

StepTimes TimesOf(const StepProgram& program, const ExecutionPlan& plan,
                  const EmulateOptions& options) {
  StepTimes times;
  TimesOf(program, plan, options, &times);
  return times;
}

void TimesOf(const StepProgram& program, const ExecutionPlan& plan,
             const EmulateOptions& options, StepTimes* times) {
  const StageGraph& graph = plan.graph;
  IdVector<RankId, double> slow(graph.num_ranks(), 1);
  for (const SlowRank& s : options.slow_ranks) slow[s.rank] *= s.factor;
  std::vector<double> slow_route(program.routes.size(), 1);
  std::vector<int64_t> added(program.routes.size(), 0);
  std::vector<int64_t> ahead(program.routes.size(), 0);
  for (size_t k = 0; k < slow_route.size(); ++k) {
    for (const SlowLink& s : options.slow_links) {
      if (s.from == RankId(program.routes[k].from) &&
          s.to == RankId(program.routes[k].to)) {
        slow_route[k] *= s.factor;
        (s.ahead ? ahead : added)[k] += s.added.count();
      }
    }
  }
  times->durations.clear();
  times->durations.reserve(program.task_of_slot.size());
  for (const TaskId t : program.task_of_slot) {
    const Task& task = graph.task(t);
    times->durations.push_back(Scaled(task.duration, slow[task.rank]));
  }
  times->transfers.clear();
  times->transfers.reserve(program.transfers.size());
  for (const StepProgram::Transfer& transfer : program.transfers) {
    const Dependency& d = graph.edge(transfer.edge);
    const double factor = slow_route[transfer.route];
    const int64_t occupancy = Scaled(d.occupancy, factor);
    times->transfers.push_back({occupancy + added[transfer.route],
                                Scaled(d.delay, factor) - occupancy,
                                ahead[transfer.route]});
  }
  times->local_lags.clear();
  for (const EdgeId e : program.local_edges) {
    times->local_lags.push_back(graph.edge(e).delay.count());
  }
  const Bandwidth bandwidth = LinksOf(plan, options).host_bandwidth;
  times->copies.clear();
  times->copies.reserve(program.copies.size());
  for (const HostCopy& copy : program.copies) {
    times->copies.push_back(Scaled(TransferTime(copy.payload, bandwidth),
                                   slow[graph.task(copy.task).rank]));
  }
  times->epilogues.clear();
  for (const RankId rank : graph.rank_ids()) {
    times->epilogues.push_back(graph.rank(rank).epilogue.count());
  }
}

}  // namespace pipeloom::emulator
