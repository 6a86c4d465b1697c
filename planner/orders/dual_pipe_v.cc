#include "planner/orders/dual_pipe_v.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace pipeloom::planner {
namespace {

class RankProgram {
 public:
  RankProgram(int32_t rank, int32_t ranks, int32_t microbatches)
      : r_(rank), p_(ranks), m_(std::max(microbatches, 2 * ranks)) {}

  DualPipeVProgram Make() {
    const int32_t below = p_ - r_ - 1;
    for (int32_t i = 0; i < 2 * below; ++i) Forward(0);
    for (int32_t i = 0; i <= r_; ++i) {
      Forward(0);
      Forward(1);
    }
    for (int32_t i = 0; i < below; ++i) {
      SplitBackward(1);
      WeightGrad();
      Forward(1);
    }
    for (int32_t i = 0; i < m_ - 2 * p_ + r_ + 1; ++i) {
      if (i == 0 && below == 0) {  // Separate, so as to stall less.
        Forward(0);
        Backward(1);
      } else {
        Pair(0, 1);
      }
      Pair(1, 0);
    }
    for (int32_t i = 0; i < below; ++i) {
      Backward(1);
      Pair(1, 0);
    }
    // The later half of the remaining backwards is split: on odd ranks from the
    // second chunk's on, on even ranks after it.
    bool split = false;
    const auto backward = [&](int32_t chunk) {
      if (split) {
        SplitBackward(chunk);
      } else {
        Backward(chunk);
      }
    };
    for (int32_t i = 0; i <= r_; ++i) {
      const bool half = i == (r_ + 1) / 2;
      split = split || (half && r_ % 2 == 1);
      backward(1);
      split = split || half;
      backward(0);
    }
    for (int32_t i = 0; i < below; ++i) {
      WeightGrad();
      SplitBackward(0);
    }
    while (next_weight_grad_ < split_.size()) WeightGrad();
    return std::move(program_);
  }

 private:
  void Begin() { program_.operations.push_back(program_.steps.size()); }
  void Add(Pass pass, int32_t chunk, int32_t microbatch) {
    program_.steps.push_back(
        {.pass = pass, .chunk = chunk, .microbatch = microbatch});
  }
  void AddForward(int32_t chunk) {
    Add(Pass::kForward, chunk, forwards_[chunk]++);
  }
  void AddBackward(int32_t chunk) {
    Add(Pass::kBackward, chunk, backwards_[chunk]);
    Add(Pass::kWeightGrad, chunk, backwards_[chunk]++);
  }

  void Forward(int32_t chunk) {
    Begin();
    AddForward(chunk);
  }
  void Backward(int32_t chunk) {
    Begin();
    AddBackward(chunk);
  }
  void Pair(int32_t forward_chunk, int32_t backward_chunk) {
    Begin();
    AddForward(forward_chunk);
    AddBackward(backward_chunk);
  }
  void SplitBackward(int32_t chunk) {
    Begin();
    Add(Pass::kBackward, chunk, backwards_[chunk]++);
    split_.push_back(program_.steps.back());
  }
  void WeightGrad() {
    Begin();
    const PassStep& step = split_[next_weight_grad_++];
    Add(Pass::kWeightGrad, step.chunk, step.microbatch);
  }

  int32_t r_;
  int32_t p_;
  int32_t m_;
  int32_t forwards_[2] = {0, 0};
  int32_t backwards_[2] = {0, 0};
  std::vector<PassStep> split_{};  // Backwards with a separate weight gradient.
  size_t next_weight_grad_ = 0;
  DualPipeVProgram program_{};
};

}  // namespace

DualPipeVProgram DualPipeVRank(int32_t rank, int32_t ranks,
                               int32_t microbatches) {
  return RankProgram(rank, ranks, microbatches).Make();
}

absl::StatusOr<RankOrders> DualPipeVOrders(const VirtualPipeline& pipeline) {
  if (pipeline.num_segments() > 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("dualpipe-v is for 2 segments; the pipeline has %d",
                        pipeline.num_segments()));
  }
  PassPrograms programs(pipeline.num_ranks());
  for (const RankId r : programs.ids()) {
    programs[r] = DualPipeVRank(r.value(), pipeline.num_ranks(),
                                pipeline.num_microbatches())
                      .steps;
  }
  return ToRankOrders(pipeline, programs);
}

}  // namespace pipeloom::planner
