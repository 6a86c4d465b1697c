#include "runtime/torch/torch_message.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace pipeloom::runtime {
namespace {

constexpr uint64_t kTitle = 7042;  // Marks this form of the text.

// A reader of numbers that each end with a space.
class Reader {
 public:
  explicit Reader(absl::string_view text) : rest_(text) {}

  template <typename Number>
  Number Take() {
    const size_t end = rest_.find(' ');
    Number value{};
    if (end == absl::string_view::npos ||
        !absl::SimpleAtoi(rest_.substr(0, end), &value)) {
      ok_ = false;
      return value;
    }
    rest_.remove_prefix(end + 1);
    return value;
  }
  // Reads a count of items that are at least two characters long each.
  int64_t TakeCount() {
    const auto count = Take<int64_t>();
    if (count < 0 || count > static_cast<int64_t>(rest_.size() / 2)) {
      ok_ = false;
    }
    return ok_ ? count : 0;
  }
  bool ok() const { return ok_; }
  absl::string_view rest() const { return rest_; }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

}  // namespace

std::string ToString(const TorchMessage& message) {
  std::string text;
  const auto put = [&](auto number) { absl::StrAppend(&text, number, " "); };
  put(kTitle);
  put(message.work.loss_rows.size());
  for (const int64_t rows : message.work.loss_rows) put(rows);
  put(message.work.parts.size());
  for (const auto& modules : message.work.parts) {
    for (const auto& subs : modules) {
      put(subs.size());
      for (const TorchSequences& sequences : subs) {
        put(sequences.size());
        for (const TorchSequence& s : sequences) {
          put(s.owner);
          put(s.own);
          put(s.fed);
          put(s.context);
          put(s.output);
          put(s.seed);
        }
      }
    }
  }
  put(message.memory.choices.size());
  for (const MemoryChoice& choice : message.memory.choices) {
    put(choice.period);
    put(choice.layers.size());
    for (const LayerMemory& layer : choice.layers) {
      put(static_cast<int>(layer.strategy));
      put(layer.groups.bits());
    }
  }
  put(message.memory.choice_of.size());
  for (const int32_t choice : message.memory.choice_of) put(choice);
  return text + message.plan;
}

absl::StatusOr<TorchMessage> ParseTorchMessage(absl::string_view text) {
  Reader in(text);
  TorchMessage message;
  const bool known = in.Take<uint64_t>() == kTitle;
  const int64_t modules = in.TakeCount();
  for (int64_t m = 0; m < modules; ++m) {
    message.work.loss_rows.push_back(in.Take<int64_t>());
  }
  const int64_t microbatches = in.TakeCount();
  for (int64_t mb = 0; mb < microbatches; ++mb) {
    auto& parts = message.work.parts[message.work.parts.push_back({})];
    for (int64_t m = 0; m < modules; ++m) {
      std::vector<TorchSequences>& subs = parts[parts.push_back({})];
      subs.resize(static_cast<size_t>(in.TakeCount()));
      for (TorchSequences& sequences : subs) {
        sequences.resize(static_cast<size_t>(in.TakeCount()));
        for (TorchSequence& s : sequences) {
          s.owner = in.Take<int32_t>();
          s.own = in.Take<int64_t>();
          s.fed = in.Take<int64_t>();
          s.context = in.Take<int64_t>();
          s.output = in.Take<int64_t>();
          s.seed = in.Take<uint64_t>();
        }
      }
    }
  }
  message.memory.choices.resize(static_cast<size_t>(in.TakeCount()));
  bool strategies = true;
  for (MemoryChoice& choice : message.memory.choices) {
    choice.period = in.Take<int32_t>();
    choice.layers.resize(static_cast<size_t>(in.TakeCount()));
    for (LayerMemory& layer : choice.layers) {
      const auto number = in.Take<int32_t>();
      const auto groups = in.Take<uint32_t>();
      strategies &=
          number >= 0 && number <= 2 && groups <= OperatorGroups::kAllBits;
      if (!strategies) break;
      layer = LayerMemory(static_cast<MemoryStrategy>(number),
                          OperatorGroups::FromBits(groups));
    }
    strategies &= ValidateMemoryChoice(choice).ok();
  }
  const int64_t pairs = in.TakeCount();
  for (int64_t k = 0; k < pairs; ++k) {
    const auto choice = in.Take<int32_t>();
    strategies &= choice >= 0 &&
                  static_cast<size_t>(choice) < message.memory.choices.size();
    message.memory.choice_of.push_back(choice);
  }
  if (!known || !in.ok() || !strategies) {
    return absl::InvalidArgumentError(
        "what rank 0 says of the step cannot be read: is every rank of one "
        "build?");
  }
  message.plan = std::string(in.rest());
  return message;
}

}  // namespace pipeloom::runtime
