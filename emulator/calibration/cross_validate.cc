#include "emulator/calibration/cross_validate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/fingerprint.h"
#include "base/status_macros.h"

namespace pipeloom::emulator {
namespace {

// Returns what is equal for all points of a site.
Fingerprint SiteOf(const OpQuery& q) {
  FingerprintBuilder site;
  site.Add(q.op).Add(q.mask).Add(q.span);
  if (IsCollective(q.op)) return site.Add(q.ranks).Add(q.bytes).Build();
  if (q.op == OpType::kOptimizer) return site.Add(q.parameters).Build();
  if (q.op == OpType::kMoe) {
    return site.Add(q.width).Add(q.ffn).Add(q.experts).Add(q.top_k).Build();
  }
  return site.Add(q.n)
      .Add(q.k)
      .Add(q.groups)
      .Add(q.heads)
      .Add(q.kv_heads)
      .Add(q.head_dim)
      .Add(q.window)
      .Add(q.width)
      .Build();
}

using Kind = std::tuple<OpType, QueryPass, QueryDtype>;

struct Prediction {
  const OpMeasurement* point = nullptr;
  double us = 0;
  double error() const { return std::abs(us / point->time_us - 1); }
};

PredictionError Summary(std::vector<Prediction> predictions) {
  PredictionError result;
  const OpQuery& query = predictions.front().point->query;
  result.op = query.op;
  result.pass = query.pass;
  result.dtype = query.dtype;
  result.points = static_cast<int64_t>(predictions.size());
  std::set<Fingerprint> sites;
  double sum = 0;
  for (const Prediction& p : predictions) {
    sum += p.error();
    sites.insert(SiteOf(p.point->query));
    if (p.error() < result.worst) continue;
    result.worst = p.error();
    result.worst_point = *p.point;
    result.worst_us = p.us;
  }
  result.sites = static_cast<int64_t>(sites.size());
  result.mean = sum / static_cast<double>(predictions.size());
  const auto middle =
      predictions.begin() + static_cast<std::ptrdiff_t>(predictions.size() / 2);
  std::nth_element(predictions.begin(), middle, predictions.end(),
                   [](const Prediction& a, const Prediction& b) {
                     return a.error() < b.error();
                   });
  result.median = middle->error();
  return result;
}

Kind KindOf(const OpQuery& q) { return {q.op, q.pass, q.dtype}; }

std::vector<PredictionError> Summaries(
    std::map<Kind, std::vector<Prediction>> predictions) {
  std::vector<PredictionError> errors;
  for (auto& [kind, of_kind] : predictions) {
    errors.push_back(Summary(std::move(of_kind)));
  }
  return errors;
}

}  // namespace

std::vector<PredictionError> ErrorsOf(absl::Span<const OpMeasurement> points,
                                      const Predictor& predict) {
  std::map<Kind, std::vector<Prediction>> predictions;
  for (const OpMeasurement& point : points) {
    predictions[KindOf(point.query)].push_back({&point, predict(point.query)});
  }
  return Summaries(std::move(predictions));
}

absl::StatusOr<std::vector<PredictionError>> CrossValidate(
    absl::Span<const OpMeasurement> points, int folds, const FitPoints& fit) {
  // The sites of each kind in the order of their hash: fold i has every
  // folds-th, so that a kind with few sites still fills every fold.
  std::map<Kind, std::map<Fingerprint, int>> fold_of;
  for (const OpMeasurement& point : points) {
    fold_of[KindOf(point.query)][SiteOf(point.query)] = 0;
  }
  for (auto& [kind, sites] : fold_of) {
    int next = 0;
    for (auto& [site, fold] : sites) fold = next++ % folds;
  }
  std::map<Kind, std::vector<Prediction>> predictions;
  for (int fold = 0; fold < folds; ++fold) {
    std::vector<OpMeasurement> seen;
    std::vector<const OpMeasurement*> unseen;
    for (const OpMeasurement& point : points) {
      const auto& sites = fold_of[KindOf(point.query)];
      const bool held_out =
          sites.size() > 1 && sites.at(SiteOf(point.query)) == fold;
      if (held_out) {
        unseen.push_back(&point);
      } else {
        seen.push_back(point);
      }
    }
    if (unseen.empty()) continue;
    PIPELOOM_ASSIGN_OR_RETURN(const Predictor predict, fit(seen));
    for (const OpMeasurement* point : unseen) {
      predictions[KindOf(point->query)].push_back(
          {point, predict(point->query)});
    }
  }
  return Summaries(std::move(predictions));
}

}  // namespace pipeloom::emulator
