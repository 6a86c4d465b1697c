// Changes of what a plan says of its sub-microbatches: their shares in the
// loss, and the shapes that they are padded to.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/planner/step/plan_mutations.h"

namespace pipeloom::testing {
namespace {

bool LossTimesTen(PlanParts& p, Random& random) {
  if (p.plan.loss_shares.empty()) return false;
  LossShare& share =
      p.plan.loss_shares[Index(random, p.plan.loss_shares.size())];
  share.tokens *= 10;
  share.instances *= 10;
  return true;
}

bool OtherShare(PlanParts& p, Random& random) {
  auto& shares = p.plan.loss_shares;
  if (shares.empty()) return false;
  const size_t k = Index(random, shares.size());
  switch (random.Below(5)) {
    case 0:
      shares.erase(shares.begin() + static_cast<ptrdiff_t>(k));
      break;
    case 1:
      shares.push_back(shares[k]);
      break;
    case 2:
      shares[k].microbatch = MicrobatchId(shares[k].microbatch.value() + 1);
      break;
    case 3:
      shares[k].sub_microbatch += 1;
      break;
    default:
      shares[k].module = ModuleId(shares[k].module.value() + 1);
  }
  return true;
}

bool OtherPaddedShape(PlanParts& p, Random& random) {
  auto& shapes = p.plan.padded_shapes;
  if (shapes.empty()) return false;
  const size_t k = Index(random, shapes.size());
  switch (random.Below(3)) {
    case 0:
      shapes.erase(shapes.begin() + static_cast<ptrdiff_t>(k));
      return !shapes.empty();
    case 1:
      shapes.push_back(shapes[k]);
      return true;
    default:
      shapes[k].sub_microbatch += 1;
      return true;
  }
}

bool OtherBucket(PlanParts& p, Random& random) {
  auto& shapes = p.plan.padded_shapes;
  if (shapes.empty()) return false;
  PaddedShape& shape = shapes[Index(random, shapes.size())];
  (random.Below(2) == 0 ? shape.tokens : shape.bucket) += 1;
  return true;
}

bool LossByOne(PlanParts& p, Random& random) {
  if (p.plan.loss_shares.empty()) return false;
  LossShare& share =
      p.plan.loss_shares[Index(random, p.plan.loss_shares.size())];
  (random.Below(2) == 0 ? share.tokens : share.instances) -= 1;
  return true;
}

}  // namespace

const std::vector<Mutation>& SubMicrobatchMutations() {
  static const auto* const mutations = new std::vector<Mutation>{
      {"loss share times ten", LossTimesTen, By::kJob},
      {"loss share by one", LossByOne, By::kJob},
      {"loss share missing or of another", OtherShare},
      {"padded shape missing or of another", OtherPaddedShape},
      {"bucket or tokens of a padded shape", OtherBucket, By::kJob},
  };
  return *mutations;
}

}  // namespace pipeloom::testing
