// CheckLoss and CheckPaddedShapes of ir/check/check_passes.h.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "ir/check/check_passes.h"

namespace pipeloom {
namespace {

absl::Status Fail(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("plan: ", what));
}

// A sub-microbatch of a module, and the most rows of a tensor between its
// stages.
struct SubOf {
  ModuleId module{};
  MicrobatchId microbatch{};
  int32_t sub_microbatch = 0;
  int64_t rows = 0;

  auto key() const {
    return std::make_tuple(module, microbatch, sub_microbatch);
  }
};
auto KeyOf(const LossShare& share) {
  return std::make_tuple(share.module, share.microbatch, share.sub_microbatch);
}

// Returns the sub-microbatches of modules with a loss, sorted as shares are.
std::vector<SubOf> SubsWithLoss(const StageGraph& graph,
                                const IdVector<ModuleId, bool>& has_loss) {
  std::vector<SubOf> subs;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    if (task.pass != Pass::kForward || !has_loss[task.module]) continue;
    SubOf sub{task.module, task.microbatch, task.sub_microbatch};
    for (const EdgeId e : graph.incoming(t)) {
      const Dependency& d = graph.edge(e);
      if (graph.task(d.from).module == task.module) {
        sub.rows = std::max(sub.rows, d.rows);
      }
    }
    if (!subs.empty() && subs.back().key() == sub.key()) {
      subs.back().rows = std::max(subs.back().rows, sub.rows);
    } else {
      subs.push_back(sub);
    }
  }
  std::stable_sort(
      subs.begin(), subs.end(),
      [](const SubOf& a, const SubOf& b) { return a.key() < b.key(); });
  // Stages of a sub-microbatch may lie apart.
  std::vector<SubOf> merged;
  for (const SubOf& sub : subs) {
    if (!merged.empty() && merged.back().key() == sub.key()) {
      merged.back().rows = std::max(merged.back().rows, sub.rows);
    } else {
      merged.push_back(sub);
    }
  }
  return merged;
}

absl::Status CheckTotals(const ExecutionPlan& plan,
                         IdVector<ModuleId, bool>* has_loss) {
  ModuleId last;
  for (size_t k = 0; k < plan.loss_totals.size(); ++k) {
    const LossTotal& total = plan.loss_totals[k];
    if (!has_loss->Contains(total.module) || !(last < total.module)) {
      return Fail(absl::StrFormat(
          "loss_total %d: module %d must be larger than the one before, %d, "
          "and less than %d",
          k, total.module.value(), last.value(), has_loss->size()));
    }
    if (total.tokens < 0 || total.instances < 0 ||
        (total.tokens == 0 && total.instances == 0)) {
      return Fail(absl::StrFormat(
          "loss_total %d: tokens %d and instances %d must be >= 0, and one of "
          "them > 0",
          k, total.tokens, total.instances));
    }
    last = total.module;
    (*has_loss)[total.module] = true;
  }
  return absl::OkStatus();
}

// Checks that the shares are those of the sub-microbatches, in order.
absl::Status CheckShares(const ExecutionPlan& plan,
                         const std::vector<SubOf>& subs) {
  const std::vector<LossShare>& shares = plan.loss_shares;
  for (size_t k = 0; k < std::max(shares.size(), subs.size()); ++k) {
    if (k < shares.size() && k < subs.size() &&
        KeyOf(shares[k]) == subs[k].key()) {
      continue;
    }
    if (k < subs.size()) {
      return Fail(absl::StrFormat(
          "loss_share %d must be of module %d, microbatch %d, sub-microbatch "
          "%d%s",
          k, subs[k].module.value(), subs[k].microbatch.value(),
          subs[k].sub_microbatch,
          k == shares.size()
              ? "; it is missing"
              : absl::StrFormat("; it is of module %d, microbatch %d, "
                                "sub-microbatch %d",
                                shares[k].module.value(),
                                shares[k].microbatch.value(),
                                shares[k].sub_microbatch)));
    }
    return Fail(absl::StrFormat(
        "loss_share %d: no task is of module %d, microbatch %d, sub-microbatch "
        "%d, or it has a share before, or its module has no loss_total",
        k, shares[k].module.value(), shares[k].microbatch.value(),
        shares[k].sub_microbatch));
  }
  return absl::OkStatus();
}

// Checks the sizes of the shares [begin, end), of one module.
absl::Status CheckSizes(const ExecutionPlan& plan,
                        const std::vector<SubOf>& subs, size_t begin,
                        size_t end, const LossTotal& total) {
  int64_t tokens = 0;
  int64_t instances = 0;
  size_t equal = 0;
  for (size_t k = begin; k < end; ++k) {
    const LossShare& share = plan.loss_shares[k];
    if (share.tokens < 0 || share.tokens > total.tokens - tokens ||
        share.instances < 0 || share.instances > total.instances - instances) {
      return Fail(absl::StrFormat(
          "loss_share %d: with tokens %d and instances %d the shares of module "
          "%d pass its loss_total of %d and %d: before it they are %d and %d",
          k, share.tokens, share.instances, share.module.value(), total.tokens,
          total.instances, tokens, instances));
    }
    tokens += share.tokens;
    instances += share.instances;
    if (share.tokens == 0 && share.instances == 0) {
      return Fail(absl::StrFormat(
          "loss_share %d: tokens and instances are 0; one must be > 0", k));
    }
    equal += subs[k].rows == share.tokens ? 1 : 0;
  }
  // Some modules hand on fewer rows than they have tokens, and padded ones
  // more. If most hand on as many, none may have more tokens.
  if (2 * equal <= end - begin) return absl::OkStatus();
  for (size_t k = begin; k < end; ++k) {
    if (plan.loss_shares[k].tokens <= subs[k].rows) continue;
    return Fail(absl::StrFormat(
        "loss_share %d (microbatch %d, sub-microbatch %d): tokens is %d; the "
        "tensors between its stages have %d rows",
        k, subs[k].microbatch.value(), subs[k].sub_microbatch,
        plan.loss_shares[k].tokens, subs[k].rows));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLoss(const ExecutionPlan& plan) {
  if (plan.loss_shares.empty() && plan.loss_totals.empty()) {
    return absl::OkStatus();
  }
  IdVector<ModuleId, bool> has_loss(
      static_cast<int32_t>(plan.graph.module_names().size()), false);
  PIPELOOM_RETURN_IF_ERROR(CheckTotals(plan, &has_loss));
  const std::vector<SubOf> subs = SubsWithLoss(plan.graph, has_loss);
  PIPELOOM_RETURN_IF_ERROR(CheckShares(plan, subs));
  size_t begin = 0;
  for (const LossTotal& total : plan.loss_totals) {
    size_t end = begin;
    while (end < subs.size() && subs[end].module == total.module) ++end;
    PIPELOOM_RETURN_IF_ERROR(CheckSizes(plan, subs, begin, end, total));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status CheckPaddedShapes(const ExecutionPlan& plan) {
  if (plan.padded_shapes.empty()) return absl::OkStatus();
  std::set<int32_t> modules;
  for (const PaddedShape& shape : plan.padded_shapes) {
    modules.insert(shape.module.value());
  }
  using Key = std::tuple<int32_t, int32_t, int32_t>;
  std::set<Key> expected;
  for (const Task& task : plan.graph.tasks()) {
    if (!modules.contains(task.module.value())) continue;
    expected.insert(
        {task.module.value(), task.microbatch.value(), task.sub_microbatch});
  }
  auto next = expected.begin();
  for (size_t k = 0; k < plan.padded_shapes.size(); ++k) {
    const PaddedShape& shape = plan.padded_shapes[k];
    const auto fail = [&](const std::string& what) {
      return Fail(absl::StrFormat(
          "padded_shape %d (module %d, microbatch %d, sub-microbatch %d): %s",
          k, shape.module.value(), shape.microbatch.value(),
          shape.sub_microbatch, what));
    };
    const Key key{shape.module.value(), shape.microbatch.value(),
                  shape.sub_microbatch};
    if (next == expected.end()) return fail("no task is of it");
    if (key != *next) {
      return fail(absl::StrFormat(
          "that of module %d, microbatch %d, sub-microbatch %d is right here",
          std::get<0>(*next), std::get<1>(*next), std::get<2>(*next)));
    }
    ++next;
    if (shape.tokens < 0 || shape.bucket < 0) {
      return fail(absl::StrFormat("tokens %d and bucket %d must be >= 0",
                                  shape.tokens, shape.bucket));
    }
  }
  if (next == expected.end()) return absl::OkStatus();
  return Fail(absl::StrFormat(
      "padded_shape of module %d, microbatch %d, sub-microbatch %d is "
      "missing",
      std::get<0>(*next), std::get<1>(*next), std::get<2>(*next)));
}

}  // namespace pipeloom
