#include "adapters/deepspeed_steps.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "adapters/action_table.h"
#include "adapters/torch_schedule.h"
#include "base/status_macros.h"

namespace pipeloom::adapters {
namespace {

constexpr size_t kMaxInstructions = size_t{1} << 21;
constexpr std::array<absl::string_view, 7> kOfBuffers = {
    "LoadMicroBatch", "ForwardPass", "BackwardPass", "SendActivation",
    "RecvActivation", "SendGrad",    "RecvGrad"};
constexpr std::array<absl::string_view, 3> kOfSteps = {
    "ReduceTiedGrads", "ReduceGrads", "OptimizerStep"};

size_t At(int32_t i) { return static_cast<size_t>(i); }

absl::Status No(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("DeepSpeed instructions cannot say this plan: ", what));
}

// Runs the lists as the engine does, every transfer blocking until both ends
// have come to it. FailedPrecondition says who waits for ever.
absl::Status CheckBlocking(const DeepSpeedSteps& steps) {
  struct Event {
    int32_t peer = 0;  // -1: nothing to wait for.
    bool send = false;
    bool forward = false;
  };
  std::vector<std::vector<Event>> events(steps.ranks.size());
  for (size_t r = 0; r < steps.ranks.size(); ++r) {
    const auto rank = static_cast<int32_t>(r);
    for (const DeepSpeedStep& step : steps.ranks[r].steps) {
      for (const DeepSpeedInstruction& i : step) {
        if (i.name == "SendActivation") {
          events[r].push_back({rank + 1, true, true});
        } else if (i.name == "RecvActivation") {
          events[r].push_back({rank - 1, false, true});
        } else if (i.name == "SendGrad") {
          events[r].push_back({rank - 1, true, false});
        } else if (i.name == "RecvGrad") {
          events[r].push_back({rank + 1, false, false});
        }
      }
    }
  }
  std::vector<size_t> at(events.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t r = 0; r + 1 < events.size(); ++r) {
      while (at[r] < events[r].size() && at[r + 1] < events[r + 1].size()) {
        const Event& a = events[r][at[r]];
        const Event& b = events[r + 1][at[r + 1]];
        if (a.peer != static_cast<int32_t>(r) + 1 ||
            b.peer != static_cast<int32_t>(r) || a.send == b.send ||
            a.forward != b.forward) {
          break;
        }
        ++at[r];
        ++at[r + 1];
        progress = true;
      }
    }
  }
  for (size_t r = 0; r < events.size(); ++r) {
    if (at[r] < events[r].size()) {
      const Event& event = events[r][at[r]];
      return absl::FailedPreconditionError(absl::StrFormat(
          "with blocking transfers rank %d waits for ever for rank %d at its "
          "transfer %d, a %s of %s",
          r, event.peer, at[r], event.send ? "send" : "receive",
          event.forward ? "an output" : "a gradient"));
    }
  }
  return absl::OkStatus();
}

// Returns FailedPrecondition if the last rank does not go back through each
// microbatch right behind its forward.
absl::Status CheckLosses(const std::vector<Cell>& last) {
  for (size_t i = 0; i + 1 < last.size(); i += 2) {
    const Action& forward = last[i].actions[0];
    const Action& next = last[i + 1].actions[0];
    if (next.kind == ActionKind::kBackward &&
        next.microbatch == forward.microbatch) {
      continue;
    }
    return No(absl::StrCat(
        TorchName(next), " follows ", TorchName(forward),
        " on the last rank; the engine keeps one loss, so the backward of the "
        "same microbatch must"));
  }
  return absl::OkStatus();
}

// Adds the transfers of a table with a stage a rank and passes alone, both ends
// at the same moment of a walk over the ranks in turns. An output goes as soon
// as it is made, a gradient when the pass that needs it comes next.
ActionTable WithTransfers(const ActionTable& passes, int32_t microbatches) {
  const size_t count = passes.ranks.size();
  const std::vector<bool> none(At(microbatches), false);
  // Indexed by rank and microbatch.
  std::vector<std::vector<bool>> forward_done(count, none);
  std::vector<std::vector<bool>> backward_done(count, none);
  std::vector<size_t> at(count, 0);
  ActionTable lowered;
  lowered.ranks.resize(count);
  const auto add = [&](size_t r, ActionKind kind, int32_t microbatch) {
    lowered.ranks[r].push_back({{{static_cast<int32_t>(r), kind, microbatch}}});
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t r = 0; r < count; ++r) {
      if (at[r] == passes.ranks[r].size()) continue;
      const Action& a = passes.ranks[r][at[r]].actions[0];
      const size_t m = At(a.microbatch);
      if (a.kind == ActionKind::kForward) {
        if (r > 0 && !forward_done[r - 1][m]) continue;
        add(r, a.kind, a.microbatch);
        forward_done[r][m] = true;
        if (r + 1 < count) {
          add(r, ActionKind::kSendForward, a.microbatch);
          add(r + 1, ActionKind::kRecvForward, a.microbatch);
        }
      } else {
        if (r + 1 < count) {
          if (!backward_done[r + 1][m]) continue;
          add(r + 1, ActionKind::kSendBackward, a.microbatch);
          add(r, ActionKind::kRecvBackward, a.microbatch);
        }
        add(r, a.kind, a.microbatch);
        backward_done[r][m] = true;
      }
      ++at[r];
      progress = true;
    }
  }
  return lowered;
}

// A rank's cells, one action each, as steps: receives, a pass, its sends. A
// buffer is taken by the first action of a microbatch and given back by the
// last.
DeepSpeedSteps::Rank StepsOf(const std::vector<Cell>& cells, int32_t r,
                             int32_t ranks) {
  DeepSpeedSteps::Rank rank;
  std::vector<int32_t> in_buffer;  // The microbatch, or -1.
  const auto buffer_of = [&](int32_t microbatch) {
    auto slot = std::find(in_buffer.begin(), in_buffer.end(), microbatch);
    if (slot == in_buffer.end()) {
      slot = std::find(in_buffer.begin(), in_buffer.end(), -1);
    }
    if (slot == in_buffer.end()) slot = in_buffer.insert(slot, -1);
    *slot = microbatch;
    return static_cast<int32_t>(slot - in_buffer.begin());
  };
  DeepSpeedStep step;
  bool has_pass = false;
  for (const Cell& cell : cells) {
    const Action& a = cell.actions[0];
    const int32_t buffer = buffer_of(a.microbatch);
    const bool is_send = a.kind == ActionKind::kSendForward ||
                         a.kind == ActionKind::kSendBackward;
    if (has_pass && !is_send) {
      rank.steps.push_back(std::move(step));
      step.clear();
      has_pass = false;
    }
    switch (a.kind) {
      case ActionKind::kForward:
        // Labels are loaded where the loss is.
        if (r == 0 || r + 1 == ranks)
          step.push_back({"LoadMicroBatch", buffer});
        step.push_back({"ForwardPass", buffer});
        has_pass = true;
        break;
      case ActionKind::kSendForward:
        step.push_back({"SendActivation", buffer});
        break;
      case ActionKind::kRecvForward:
        step.push_back({"RecvActivation", buffer});
        break;
      case ActionKind::kSendBackward:
        step.push_back({"SendGrad", buffer});
        break;
      case ActionKind::kRecvBackward:
        step.push_back({"RecvGrad", buffer});
        break;
      default:
        step.push_back({"BackwardPass", buffer});
        has_pass = true;
        break;
    }
    const bool last = r == 0 ? a.kind == ActionKind::kBackward
                             : a.kind == ActionKind::kSendBackward;
    if (last) in_buffer[At(buffer)] = -1;
  }
  if (!step.empty()) rank.steps.push_back(std::move(step));
  rank.num_buffers = static_cast<int32_t>(in_buffer.size());
  rank.steps.push_back(
      {{"ReduceTiedGrads"}, {"ReduceGrads"}, {"OptimizerStep"}});
  return rank;
}

// The passes of one rank, and the microbatches of its transfers in their order.
struct RankRun {
  std::vector<Cell> passes{};
  std::vector<int32_t> sent_outputs{};
  std::vector<int32_t> sent_gradients{};
  std::vector<int32_t> received_outputs{};
  std::vector<int32_t> received_gradients{};
};

// One rank's instructions, run as the engine runs them. Microbatches are
// numbered as the rank goes forward.
class RankWalk {
 public:
  RankWalk(int32_t rank, int32_t ranks, int32_t buffers)
      : rank_(rank), ranks_(ranks), buffers_(At(buffers)) {}

  // Returns what is wrong with the instruction here; empty: nothing.
  std::string Run(const DeepSpeedInstruction& i) {
    if (updated_) return "the optimizer's step was before it";
    if (i.buffer < 0) {
      updated_ = i.name == "OptimizerStep";
      return "";
    }
    if (i.buffer >= static_cast<int32_t>(buffers_.size())) {
      return absl::StrFormat("there are %d buffers", buffers_.size());
    }
    Buffer& b = buffers_[At(i.buffer)];
    if (gradient_ >= 0 && absl::StartsWith(i.name, "Recv")) {
      return "the backward of the gradient that came last has not run";
    }
    if (i.name == "LoadMicroBatch") {
      if (rank_ > 0 && rank_ + 1 < ranks_) return "only the ends load samples";
      b.loaded = true;
      return "";
    }
    if (i.name == "RecvActivation") {
      if (rank_ == 0) return "there is no rank before";
      if (b.given >= 0) return "the buffer has an input";
      b.given = num_given_++;
      run_.received_outputs.push_back(-1);
      return "";
    }
    if (i.name == "ForwardPass") return Forward(&b);
    if (b.microbatch < 0) return "the buffer is empty";
    if (i.name == "BackwardPass") return Backward(&b, i.buffer);
    if (i.name == "SendActivation") {
      if (rank_ + 1 == ranks_) return "there is no rank behind";
      if (b.sent || b.done) return "its output has gone";
      b.sent = true;
      run_.sent_outputs.push_back(b.microbatch);
      return "";
    }
    if (i.name == "RecvGrad") {
      if (rank_ + 1 == ranks_) return "there is no rank behind";
      if (b.done) return "its backward has run";
      gradient_ = i.buffer;
      run_.received_gradients.push_back(b.microbatch);
      return "";
    }
    if (rank_ == 0) return "there is no rank before";  // SendGrad.
    if (!b.done) return "its backward has not run";
    run_.sent_gradients.push_back(b.microbatch);
    b.microbatch = -1;
    return "";
  }

  // Returns what is missing at the end of the lists.
  std::string Unfinished() const {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (buffers_[i].microbatch >= 0) {
        return absl::StrFormat("buffer %d holds microbatch %d", i,
                               buffers_[i].microbatch);
      }
      if (buffers_[i].given >= 0) {
        return absl::StrFormat("no forward takes the input in buffer %d", i);
      }
    }
    return updated_ ? "" : "there is no OptimizerStep";
  }

  int32_t num_forwards() const { return num_forwards_; }
  RankRun Take() && { return std::move(run_); }

 private:
  struct Buffer {
    bool loaded = false;
    int32_t given = -1;       // The number of the output that came into it.
    int32_t microbatch = -1;  // From its forward to its last use.
    bool sent = false;
    bool done = false;  // Its backward has run.
  };

  std::string Forward(Buffer* b) {
    if (b->microbatch >= 0) {
      return absl::StrCat("the buffer holds microbatch ", b->microbatch);
    }
    if (rank_ > 0 && b->given < 0) return "no RecvActivation was before it";
    if ((rank_ == 0 || rank_ + 1 == ranks_) && !b->loaded) {
      return "no LoadMicroBatch was before it";
    }
    const int32_t microbatch = num_forwards_++;
    if (b->given >= 0) run_.received_outputs[At(b->given)] = microbatch;
    *b = {.microbatch = microbatch};
    run_.passes.push_back({{{rank_, ActionKind::kForward, microbatch}}});
    return "";
  }

  std::string Backward(Buffer* b, int32_t buffer) {
    if (b->done) return "its backward has run";
    if (rank_ + 1 < ranks_) {
      if (!b->sent) return "its output has not gone";
      if (gradient_ != buffer) return "no RecvGrad was right before it";
      gradient_ = -1;
    } else if (b->microbatch + 1 != num_forwards_) {
      return "the engine keeps one loss, that of the last forward";
    }
    run_.passes.push_back({{{rank_, ActionKind::kBackward, b->microbatch}}});
    b->done = true;
    if (rank_ == 0) b->microbatch = -1;
    return "";
  }

  int32_t rank_;
  int32_t ranks_;
  std::vector<Buffer> buffers_;
  int32_t num_given_ = 0;
  int32_t num_forwards_ = 0;
  int32_t gradient_ = -1;  // The buffer of the gradient that came last.
  bool updated_ = false;
  RankRun run_{};
};

// Returns FailedPrecondition if a rank takes what the other sent for another
// microbatch. REQUIRES: as many are sent as received.
absl::Status CheckSame(size_t from, const std::vector<int32_t>& sent, size_t to,
                       const std::vector<int32_t>& received,
                       absl::string_view what) {
  for (size_t k = 0; k < sent.size(); ++k) {
    if (sent[k] == received[k]) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "rank %d takes %s of microbatch %d of rank %d for its microbatch %d",
        to, what, sent[k], from, received[k]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeepSpeedSteps> ToDeepSpeed(const ActionTable& table) {
  TableShape shape;
  PIPELOOM_RETURN_IF_ERROR(CheckTable(table, &shape));
  const auto ranks = static_cast<int32_t>(table.ranks.size());
  for (int32_t s = 0; s < shape.num_stages; ++s) {
    if (shape.num_stages != ranks || shape.rank_of_stage[At(s)] != s) {
      return No(absl::StrFormat(
          "%d stages on %d ranks, stage %d on rank %d; every rank has one "
          "stage, in order",
          shape.num_stages, ranks, s, shape.rank_of_stage[At(s)]));
    }
  }
  ActionTable lowered = table;
  for (auto& row : lowered.ranks) {
    std::erase_if(row, [](const Cell& cell) {
      return cell.actions.empty() ||
             (cell.actions.size() == 1 && IsTransfer(cell.actions[0].kind));
    });
    for (const Cell& cell : row) {
      if (cell.actions.size() > 1) {
        return No(absl::StrCat(TorchName(cell), " overlaps two passes"));
      }
      for (const Action& a : cell.actions) {
        if (a.kind == ActionKind::kForward || a.kind == ActionKind::kBackward) {
          continue;
        }
        return No(absl::StrCat(TorchName(a),
                               " has its weight gradient apart; `plan --for "
                               "deepspeed` makes a plan with whole "
                               "backwards"));
      }
    }
  }
  if (ranks > 0) {
    PIPELOOM_RETURN_IF_ERROR(CheckLosses(lowered.ranks.back()));
  }
  lowered = WithTransfers(lowered, shape.num_microbatches);
  DeepSpeedSteps result;
  result.num_microbatches = shape.num_microbatches;
  for (int32_t r = 0; r < ranks; ++r) {
    result.ranks.push_back(StepsOf(lowered.ranks[At(r)], r, ranks));
  }
  if (const absl::Status blocked = CheckBlocking(result); !blocked.ok()) {
    return No(blocked.message());
  }
  return result;
}

absl::StatusOr<ActionTable> FromDeepSpeed(const DeepSpeedSteps& steps) {
  std::vector<RankRun> runs;
  const auto ranks = static_cast<int32_t>(steps.ranks.size());
  for (int32_t r = 0; r < ranks; ++r) {
    const DeepSpeedSteps::Rank& rank = steps.ranks[At(r)];
    RankWalk walk(r, ranks, rank.num_buffers);
    for (size_t s = 0; s < rank.steps.size(); ++s) {
      for (const DeepSpeedInstruction& i : rank.steps[s]) {
        const std::string why = walk.Run(i);
        if (why.empty()) continue;
        return absl::FailedPreconditionError(
            i.buffer < 0 ? absl::StrFormat("rank %d, step %d: %s, but %s", r, s,
                                           i.name, why)
                         : absl::StrFormat("rank %d, step %d: %s(%d), but %s",
                                           r, s, i.name, i.buffer, why));
      }
    }
    if (const std::string why = walk.Unfinished(); !why.empty()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("rank %d ends, but %s", r, why));
    }
    if (walk.num_forwards() != steps.num_microbatches) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "rank %d goes forward through %d microbatches; the file has %d", r,
          walk.num_forwards(), steps.num_microbatches));
    }
    runs.push_back(std::move(walk).Take());
  }
  PIPELOOM_RETURN_IF_ERROR(CheckBlocking(steps));
  ActionTable table;
  for (size_t r = 0; r < runs.size(); ++r) {
    if (r > 0) {
      PIPELOOM_RETURN_IF_ERROR(CheckSame(r - 1, runs[r - 1].sent_outputs, r,
                                         runs[r].received_outputs,
                                         "the output"));
      PIPELOOM_RETURN_IF_ERROR(CheckSame(r, runs[r].sent_gradients, r - 1,
                                         runs[r - 1].received_gradients,
                                         "the gradient"));
    }
    table.ranks.push_back(runs[r].passes);
  }
  return table;
}

std::string PrintDeepSpeed(const DeepSpeedSteps& steps) {
  std::string text =
      absl::StrFormat("deepspeed ranks %d microbatches %d\n",
                      steps.ranks.size(), steps.num_microbatches);
  for (size_t r = 0; r < steps.ranks.size(); ++r) {
    absl::StrAppend(&text, "rank ", r, " buffers ", steps.ranks[r].num_buffers,
                    "\n");
    for (const DeepSpeedStep& step : steps.ranks[r].steps) {
      text += " ";
      for (const DeepSpeedInstruction& i : step) {
        absl::StrAppend(&text, " ", i.name);
        if (i.buffer >= 0) absl::StrAppend(&text, "(", i.buffer, ")");
      }
      text += "\n";
    }
  }
  return text;
}

absl::StatusOr<DeepSpeedSteps> ParseDeepSpeed(absl::string_view text) {
  DeepSpeedSteps steps;
  int32_t ranks = -1;
  size_t instructions = 0;
  size_t line_number = 0;
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", line_number, ": ", what));
  };
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++line_number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line[0] == '#') continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (ranks < 0) {
      if (words.size() != 5 || words[0] != "deepspeed" || words[1] != "ranks" ||
          words[3] != "microbatches" || !absl::SimpleAtoi(words[2], &ranks) ||
          !absl::SimpleAtoi(words[4], &steps.num_microbatches) || ranks < 1) {
        return error("expected \"deepspeed ranks N microbatches N\"");
      }
      continue;
    }
    if (words[0] == "rank") {
      int32_t number = 0;
      DeepSpeedSteps::Rank rank;
      if (words.size() != 4 || words[2] != "buffers" ||
          !absl::SimpleAtoi(words[1], &number) ||
          !absl::SimpleAtoi(words[3], &rank.num_buffers) ||
          number != static_cast<int32_t>(steps.ranks.size()) ||
          number >= ranks || rank.num_buffers < 0 ||
          rank.num_buffers > (1 << 16)) {
        return error(
            absl::StrFormat("expected \"rank %d buffers N\" of %d "
                            "ranks, at most 65536 buffers",
                            steps.ranks.size(), ranks));
      }
      steps.ranks.push_back(std::move(rank));
      continue;
    }
    if (steps.ranks.empty()) return error("expected \"rank 0 buffers N\"");
    DeepSpeedStep step;
    for (const absl::string_view word : words) {
      DeepSpeedInstruction instruction;
      absl::string_view name = word;
      const size_t open = word.find('(');
      bool known = false;
      if (open == absl::string_view::npos) {
        known =
            std::find(kOfSteps.begin(), kOfSteps.end(), name) != kOfSteps.end();
      } else {
        name = word.substr(0, open);
        absl::string_view number = word.substr(open + 1);
        known = absl::ConsumeSuffix(&number, ")") &&
                absl::SimpleAtoi(number, &instruction.buffer) &&
                instruction.buffer >= 0 &&
                instruction.buffer < steps.ranks.back().num_buffers &&
                std::find(kOfBuffers.begin(), kOfBuffers.end(), name) !=
                    kOfBuffers.end();
      }
      if (!known || ++instructions > kMaxInstructions) {
        return error(absl::StrCat(
            "\"", word.substr(0, 40),
            "\" is no instruction on one of the rank's buffers, as in "
            "ForwardPass(0)"));
      }
      instruction.name = std::string(name);
      step.push_back(std::move(instruction));
    }
    steps.ranks.back().steps.push_back(std::move(step));
  }
  if (ranks < 0 || steps.ranks.size() != At(ranks)) {
    return error(
        absl::StrFormat("the file ends after %d ranks", steps.ranks.size()));
  }
  return steps;
}

}  // namespace pipeloom::adapters
