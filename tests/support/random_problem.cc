#include "tests/support/random_problem.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pipeloom::testing {
namespace {

struct Builder {
  IdVector<RankId, RankSpec> ranks;
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;

  void Connect(TaskId from, TaskId to, Duration delay) {
    Dependency d{.from = from, .to = to};
    if (tasks[from].rank != tasks[to].rank) {
      d.delay = delay;
      d.payload = Bytes(64);
      d.rows = 4;
      d.width = 8;
    }
    edges.push_back(d);
  }

  StageGraph Build(std::string name) {
    auto graph =
        StageGraph::Create(std::move(name), std::move(ranks), {"model"},
                           std::move(tasks), std::move(edges));
    PIPELOOM_CHECK(graph.ok());
    return *std::move(graph);
  }
};

struct StageTimes {
  Duration forward, backward, weight_grad;
  Bytes activation;
  RankId rank;
};

// Adds one microbatch that passes `stages` forward and back.
void AddMicrobatch(Builder& b, MicrobatchId microbatch,
                   const std::vector<StageTimes>& stages, bool split,
                   Duration delay) {
  std::vector<TaskId> forward;
  const auto task = [&](size_t s, Pass pass) {
    return Task{.rank = stages[s].rank,
                .pass = pass,
                .module = ModuleId(0),
                .stage = StageId(static_cast<int32_t>(s)),
                .microbatch = microbatch};
  };
  for (size_t s = 0; s < stages.size(); ++s) {
    Task f = task(s, Pass::kForward);
    f.duration = stages[s].forward;
    f.alloc = stages[s].activation;
    forward.push_back(b.tasks.push_back(f));
    if (s > 0) b.Connect(forward[s - 1], forward[s], delay);
  }
  TaskId after = forward.back();
  for (size_t s = stages.size(); s-- > 0;) {
    Task t = task(s, Pass::kBackward);
    t.duration = stages[s].backward;
    if (!split) {
      t.duration += stages[s].weight_grad;
      t.free = stages[s].activation;
    }
    const TaskId backward = b.tasks.push_back(t);
    b.Connect(after, backward, delay);
    if (after != forward[s]) b.Connect(forward[s], backward, delay);
    after = backward;
    if (split) {
      Task w = task(s, Pass::kWeightGrad);
      w.duration = stages[s].weight_grad;
      w.free = stages[s].activation;
      b.Connect(backward, b.tasks.push_back(w), delay);
    }
  }
}

}  // namespace

StageGraph RandomGraph(uint64_t seed, const RandomGraphOptions& options) {
  Random random(seed);
  Builder b;
  const auto num_ranks =
      static_cast<int32_t>(random.Between(1, options.max_ranks));
  const auto segments =
      static_cast<int32_t>(random.Between(1, options.max_segments));
  const auto microbatches =
      static_cast<int32_t>(random.Between(1, options.max_microbatches));
  const bool split = options.allow_split_backward && random.Below(2) == 0;
  const bool vee = random.Below(2) == 0;
  IdVector<RankId, Bytes> all(num_ranks);
  IdVector<RankId, Bytes> most(num_ranks);
  b.ranks.resize(num_ranks);
  for (int32_t m = 0; m < microbatches; ++m) {
    std::vector<StageTimes> stages;
    IdVector<RankId, Bytes> mine(num_ranks);
    for (int32_t s = 0; s < segments * num_ranks; ++s) {
      const int32_t position = s % num_ranks;
      const bool reversed = vee && (s / num_ranks) % 2 == 1;
      const RankId rank(reversed ? num_ranks - 1 - position : position);
      stages.push_back(
          {.forward = Microseconds(double(random.Between(0, 9))),
           .backward = Microseconds(double(random.Between(0, 9))),
           .weight_grad = Microseconds(double(random.Between(0, 9))),
           .activation = Bytes(random.Between(0, 20)),
           .rank = rank});
      mine[rank] += stages.back().activation;
    }
    const Duration delay = options.allow_delays && random.Below(2) == 0
                               ? Microseconds(double(random.Between(0, 3)))
                               : kZero;
    AddMicrobatch(b, MicrobatchId(m), stages, split, delay);
    for (const RankId r : mine.ids()) {
      all[r] += mine[r];
      most[r] = std::max(most[r], mine[r]);
    }
  }
  for (const RankId r : b.ranks.ids()) {
    RankSpec& rank = b.ranks[r];
    rank.memory.overhead = Bytes(random.Between(0, 10));
    if (options.with_memory_limits) {
      rank.memory.limit =
          rank.memory.overhead + Bytes(1) +
          Bytes(random.Between(most[r].count(), all[r].count()));
    }
    if (options.with_epilogues) {
      rank.epilogue = Microseconds(double(random.Between(0, 9)));
    }
  }
  return b.Build("random");
}

RankOrders RandomOrders(const StageGraph& graph, Random& random) {
  RankOrders orders(graph.num_ranks());
  IdVector<TaskId, int32_t> missing(graph.num_tasks(), 0);
  std::vector<TaskId> ready;
  for (const TaskId t : graph.task_ids()) {
    missing[t] = static_cast<int32_t>(graph.incoming(t).size());
    if (missing[t] == 0) ready.push_back(t);
  }
  while (!ready.empty()) {
    const auto pick =
        static_cast<size_t>(random.Below(static_cast<int64_t>(ready.size())));
    const TaskId t = ready[pick];
    ready[pick] = ready.back();
    ready.pop_back();
    orders[graph.task(t).rank].push_back(t);
    for (const EdgeId e : graph.outgoing(t)) {
      if (--missing[graph.edge(e).to] == 0) ready.push_back(graph.edge(e).to);
    }
  }
  return orders;
}

StageGraph UniformGraph(const UniformOptions& o) {
  Builder b;
  b.ranks.resize(o.ranks);
  for (const RankId r : b.ranks.ids()) b.ranks[r].memory.limit = o.limit;
  std::vector<StageTimes> stages;
  for (int32_t s = 0; s < o.chunks * o.ranks; ++s) {
    const bool reversed = o.vee && (s / o.ranks) % 2 == 1;
    const int32_t position = s % o.ranks;
    stages.push_back(
        {.forward = o.forward,
         .backward = o.backward,
         .weight_grad = o.weight_grad,
         .activation = o.activation,
         .rank = RankId(reversed ? o.ranks - 1 - position : position)});
  }
  for (int32_t m = 0; m < o.microbatches; ++m) {
    AddMicrobatch(b, MicrobatchId(m), stages, o.split_backward, o.delay);
  }
  return b.Build("uniform");
}

}  // namespace pipeloom::testing
