#include "partition/placement/orchestration.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_format.h"

namespace pipeloom::partition {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The best way to use at most a given number of GPUs.
struct Choice {
  double seconds = kNever;
  int32_t gpus = 0;
  int32_t option = -1;
};

// Sets choice[g] to that of an encoder or generator with at most g GPUs.
void BestChoices(const UnitProblem& unit, int32_t gpus, int64_t replicas,
                 int32_t in_flight, double memory,
                 std::vector<Choice>* choices) {
  choices->assign(static_cast<size_t>(gpus) + 1, {});
  if (unit.options.empty()) {
    for (Choice& choice : *choices) choice.seconds = 0;
    return;
  }
  for (int32_t g = 1; g <= gpus; ++g) {
    Choice best = (*choices)[static_cast<size_t>(g) - 1];
    for (size_t o = 0; o < unit.options.size(); ++o) {
      const double seconds =
          UnitSeconds(unit.options[o], g, replicas, in_flight, memory);
      if (seconds < best.seconds) {
        best = {seconds, g, static_cast<int32_t>(o)};
      }
    }
    (*choices)[static_cast<size_t>(g)] = best;
  }
}

UnitAnswer AnswerOf(const UnitProblem& unit, const Choice& choice) {
  if (choice.option < 0) return {};
  const UnitOption& option = unit.options[static_cast<size_t>(choice.option)];
  return {.gpus = choice.gpus,
          .tp = option.tp,
          .dp = choice.gpus / option.tp,
          .pp = 1,
          .recompute = option.recompute,
          .seconds = choice.seconds};
}

}  // namespace

double UnitSeconds(const UnitOption& option, int32_t gpus, int64_t replicas,
                   int32_t in_flight, double memory_bytes) {
  if (gpus < option.tp || gpus % option.tp != 0) return kNever;
  const double groups = static_cast<double>(gpus / option.tp);
  const double samples = static_cast<double>(replicas) / groups;
  if (memory_bytes > 0) {
    // A group works on whole samples.
    const double held = std::ceil(samples * in_flight);
    const double needed = option.weight_bytes +
                          option.optimizer_bytes / groups +
                          option.activation_bytes * held;
    if (needed > memory_bytes) return kNever;
  }
  return samples * option.seconds;
}

absl::StatusOr<OrchestrationAnswer> Orchestrate(
    const OrchestrationProblem& problem) {
  if (problem.backbone.options.empty() || problem.gpus < 1 ||
      problem.batch < 1 || problem.most_stages < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a placement needs a backbone of at least one layer, GPUs and samples; "
        "there are %d options, %d layers, %d GPUs and %d samples",
        problem.backbone.options.size(), problem.most_stages, problem.gpus,
        problem.batch));
  }
  struct Layout {
    size_t option = 0;
    int32_t dp = 0;
    int32_t pp = 0;
    double bound = 0;  // No answer with this backbone is better.
  };
  std::vector<Layout> layouts;
  for (size_t o = 0; o < problem.backbone.options.size(); ++o) {
    const UnitOption& option = problem.backbone.options[o];
    for (int64_t dp = 1; dp <= problem.batch && dp * option.tp <= problem.gpus;
         ++dp) {
      if (problem.batch % dp != 0) continue;
      const int64_t rounds = problem.batch / dp;
      for (int32_t pp = 1; pp <= problem.most_stages &&
                           int64_t{pp} * dp * option.tp <= problem.gpus;
           ++pp) {
        const auto stages = static_cast<double>(pp);
        const double held =
            static_cast<double>(std::min<int64_t>(pp, rounds)) / stages;
        const double needed =
            option.weight_bytes / stages +
            option.optimizer_bytes / (stages * static_cast<double>(dp)) +
            option.activation_bytes * held;
        if (problem.memory_bytes > 0 && needed > problem.memory_bytes) continue;
        layouts.push_back({.option = o,
                           .dp = static_cast<int32_t>(dp),
                           .pp = pp,
                           .bound = option.seconds +
                                    option.seconds * problem.SlowestShare(pp) *
                                        static_cast<double>(rounds - 1)});
      }
    }
  }
  // The most promising first, so that most of the others can be skipped.
  std::stable_sort(
      layouts.begin(), layouts.end(),
      [](const Layout& a, const Layout& b) { return a.bound < b.bound; });
  std::optional<OrchestrationAnswer> best;
  std::vector<Choice> encoder;
  std::vector<Choice> generator;
  for (const Layout& layout : layouts) {
    if (best.has_value() && layout.bound >= best->seconds()) break;
    const UnitOption& option = problem.backbone.options[layout.option];
    const int32_t y = option.tp * layout.dp * layout.pp;
    const int32_t rest = problem.gpus - y;
    // No split of the rest is better than each unit having all of it.
    const double rounds = static_cast<double>(problem.batch / layout.dp - 1);
    const double stage = option.seconds * problem.SlowestShare(layout.pp);
    if (best.has_value() && rest > 0) {
      double rate = 0;  // Lower bound of the GPU seconds of a microbatch.
      for (const UnitProblem* unit : {&problem.encoder, &problem.generator}) {
        double least = kNever;
        for (const UnitOption& o : unit->options) {
          least = std::min(least, o.seconds * o.tp);
        }
        if (!unit->options.empty()) rate += least;
      }
      const double share = rate * layout.dp / rest;
      if (option.seconds + std::max(stage, share) * rounds >= best->seconds()) {
        continue;
      }
    }
    BestChoices(problem.encoder, rest, layout.dp, layout.pp + 2,
                problem.memory_bytes, &encoder);
    BestChoices(problem.generator, rest, layout.dp, 1, problem.memory_bytes,
                &generator);
    for (int32_t x = 0; x <= rest; ++x) {
      const Choice& e = encoder[static_cast<size_t>(x)];
      const Choice& g = generator[static_cast<size_t>(rest - x)];
      const double slowest = std::max({stage, e.seconds, g.seconds});
      const double warm_up = option.seconds + e.seconds + g.seconds;
      const double steady = slowest * rounds;
      if (!(warm_up + steady < kNever)) continue;
      if (best.has_value() && warm_up + steady >= best->seconds()) continue;
      OrchestrationAnswer answer;
      answer.encoder = AnswerOf(problem.encoder, e);
      answer.generator = AnswerOf(problem.generator, g);
      answer.backbone = {.gpus = y,
                         .tp = option.tp,
                         .dp = layout.dp,
                         .pp = layout.pp,
                         .recompute = option.recompute,
                         .seconds = stage};
      answer.warm_up = warm_up;
      answer.steady = steady;
      best = answer;
    }
  }
  if (best.has_value()) return *best;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "no placement of %s, %s and %s on %d GPUs fits %.1f GiB a GPU",
      problem.encoder.options.empty() ? "no encoder" : problem.encoder.name,
      problem.backbone.name,
      problem.generator.options.empty() ? "no generator"
                                        : problem.generator.name,
      problem.gpus, problem.memory_bytes / (1 << 30)));
}

absl::StatusOr<OrchestrationAnswer> MegatronStyle(
    const OrchestrationProblem& problem, int32_t tp, int32_t stages) {
  const int32_t depth = stages + (problem.encoder.options.empty() ? 0 : 1) +
                        (problem.generator.options.empty() ? 0 : 1);
  const int32_t dp = problem.gpus / (tp * depth);
  const auto fail = [&](const char* unit) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s does not fit with tp %d and %d stages for all units on %d GPUs",
        unit, tp, stages, problem.gpus));
  };
  if (dp < 1) return fail("a replica");
  OrchestrationAnswer answer;
  const double rounds = std::ceil(static_cast<double>(problem.batch) / dp);
  double slowest = 0;
  const auto place = [&](const UnitProblem& unit, int32_t pp, int32_t in_flight,
                         UnitAnswer* found) {
    double best = kNever;
    for (const UnitOption& option : unit.options) {
      if (option.tp != tp) continue;
      UnitOption part = option;
      part.weight_bytes /= pp;
      part.optimizer_bytes /= pp;
      part.activation_bytes /= pp;
      part.seconds *= pp > 1 ? problem.SlowestShare(pp) : 1;
      const double seconds =
          UnitSeconds(part, tp * dp, dp, in_flight, problem.memory_bytes);
      if (seconds >= best) continue;
      best = seconds;
      *found = {.gpus = tp * dp * pp,
                .tp = tp,
                .dp = dp,
                .pp = pp,
                .recompute = option.recompute,
                .seconds = seconds};
    }
    slowest = std::max(slowest, best);
    return best < kNever || unit.options.empty();
  };
  if (!problem.encoder.options.empty() &&
      !place(problem.encoder, 1, stages + 2, &answer.encoder)) {
    return fail("the encoder");
  }
  if (!place(problem.backbone, stages, stages, &answer.backbone)) {
    return fail("the backbone");
  }
  if (!problem.generator.options.empty() &&
      !place(problem.generator, 1, 1, &answer.generator)) {
    return fail("the generator");
  }
  answer.warm_up = answer.encoder.seconds + answer.generator.seconds +
                   answer.backbone.seconds * stages;
  answer.steady = slowest * (rounds - 1);
  return answer;
}

}  // namespace pipeloom::partition
