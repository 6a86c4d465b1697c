#include "formats/graph/chrome_trace_reader.h"

#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace pipeloom::formats {
namespace {

constexpr size_t kChunk = size_t{1} << 16;
constexpr int64_t kMaxToken = int64_t{1} << 20;
constexpr size_t kMaxArgs = 64;
constexpr size_t kMaxArgBytes = 4096;
constexpr int kMaxDepth = 256;

// The bytes of the file, read chunk by chunk.
class Source {
 public:
  explicit Source(const ChunkReader& read) : read_(read), buffer_(kChunk) {}

  bool AtEnd() {
    if (at_ < size_) return false;
    if (over_ || !status_.ok()) return true;
    absl::StatusOr<size_t> got = read_(buffer_.data(), buffer_.size());
    if (!got.ok()) {
      status_ = got.status();
      return true;
    }
    at_ = 0;
    size_ = *got;
    over_ = size_ == 0;
    return over_;
  }
  char Here() const { return buffer_[at_]; }
  void Next() {
    ++at_;
    ++position_;
    if (position_ - token_ > kMaxToken && status_.ok()) {
      status_ = absl::InvalidArgumentError(
          "a name, number or gap of more than a mebibyte");
      at_ = size_;
    }
  }
  void TokenSeen() { token_ = position_; }
  int64_t position() const { return position_; }
  const absl::Status& status() const { return status_; }

 private:
  const ChunkReader& read_;
  std::vector<char> buffer_;
  size_t at_ = 0;
  size_t size_ = 0;
  int64_t position_ = 0;
  int64_t token_ = 0;
  bool over_ = false;
  absl::Status status_{};
};

class Bytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  explicit Bytes(Source* source) : source_(source) {}
  char operator*() const { return source_->Here(); }
  Bytes& operator++() {
    source_->Next();
    return *this;
  }
  void operator++(int) { source_->Next(); }
  bool operator==(const Bytes& other) const {
    const bool mine = source_ == nullptr || source_->AtEnd();
    const bool its = other.source_ == nullptr || other.source_->AtEnd();
    return mine == its;
  }
  bool operator!=(const Bytes& other) const { return !(*this == other); }

 private:
  Source* source_;
};

// The callbacks of the nlohmann parser. Depth 0 is outside of everything.
class Handler {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  Handler(Source* source,
          absl::FunctionRef<absl::Status(const ChromeEvent&)> visit)
      : source_(source), visit_(visit) {}

  bool null() { return Value(""); }
  bool boolean(bool value) { return Value(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) {
    return Number(static_cast<double>(value), absl::StrCat(value));
  }
  bool number_unsigned(number_unsigned_t value) {
    return Number(static_cast<double>(value), absl::StrCat(value));
  }
  bool number_float(number_float_t value, const string_t& text) {
    return Number(value, text);
  }
  bool string(string_t& value) { return Value(value); }
  bool binary(binary_t&) { return true; }

  bool start_object(std::size_t) {
    source_->TokenSeen();
    if (depth_ == 0) {
      object_ = true;
    } else if (depth_ == events_depth_) {
      event_ = {};
      in_event_ = true;
    } else if (in_event_ && depth_ == events_depth_ + 1 && key_ == "args") {
      in_args_ = true;
    } else if (depth_ == 1 && object_ && key_ == "distributedInfo") {
      in_distributed_ = true;
    }
    return Deeper();
  }
  bool end_object() {
    source_->TokenSeen();
    --depth_;
    if (in_args_ && depth_ == events_depth_ + 1) in_args_ = false;
    if (in_distributed_ && depth_ == 1) in_distributed_ = false;
    if (in_event_ && depth_ == events_depth_) {
      in_event_ = false;
      ++info.events;
      status = visit_(event_);
      if (!status.ok()) return false;
    }
    return true;
  }
  bool start_array(std::size_t) {
    source_->TokenSeen();
    if (depth_ == 0 || (depth_ == 1 && object_ && key_ == "traceEvents")) {
      events_depth_ = depth_ + 1;
      seen_events = true;
    }
    return Deeper();
  }
  bool end_array() {
    source_->TokenSeen();
    if (depth_ == events_depth_) events_depth_ = -1;
    --depth_;
    return true;
  }
  bool key(string_t& value) {
    source_->TokenSeen();
    // Keys inside nested values do not matter.
    key_ = value.size() <= kMaxArgBytes ? value : std::string();
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& error) {
    if (status.ok() && source_->status().ok()) {
      std::string what = error.what();
      // "[json.exception.parse_error.101] parse error at ..., column 5: ..."
      if (const size_t at = what.find(": "); at != std::string::npos) {
        what = what.substr(at + 2);
      }
      status = absl::InvalidArgumentError(what);
    }
    return false;
  }

  ChromeTraceInfo info{};
  bool seen_events = false;
  absl::Status status{};

 private:
  bool Deeper() {
    if (++depth_ <= kMaxDepth) return true;
    status = absl::InvalidArgumentError(
        absl::StrCat("lists and objects more than ", kMaxDepth, " deep"));
    return false;
  }

  bool AtEvent() const { return in_event_ && depth_ == events_depth_ + 1; }

  bool Number(double value, const std::string& text) {
    if (AtEvent() && (key_ == "ts" || key_ == "dur")) {
      source_->TokenSeen();
      if (!(std::abs(value) < 9e15)) {
        status = absl::InvalidArgumentError(
            absl::StrCat("\"", key_, "\" is ", text,
                         "; it must be microseconds below 9e15"));
        return false;
      }
      const auto ns = static_cast<int64_t>(std::llround(value * 1e3));
      if (key_ == "ts") {
        event_.start_ns = ns;
        event_.has_time = true;
      } else {
        event_.duration_ns = ns;
      }
      return true;
    }
    return Value(text);
  }

  bool Value(const std::string& text) {
    source_->TokenSeen();
    if (in_args_ && depth_ == events_depth_ + 2) {
      if (event_.args.size() < kMaxArgs && text.size() <= kMaxArgBytes) {
        event_.args.emplace_back(key_, text);
      }
    } else if (AtEvent()) {
      if (key_ == "name") event_.name = text.substr(0, kMaxArgBytes);
      if (key_ == "cat") event_.category = text.substr(0, kMaxArgBytes);
      if (key_ == "ph") event_.phase = text.substr(0, 8);
      int64_t id = 0;
      if (key_ == "pid" && absl::SimpleAtoi(text, &id)) event_.process = id;
      if (key_ == "tid" && absl::SimpleAtoi(text, &id)) event_.thread = id;
    } else if (in_distributed_ && depth_ == 2 && key_ == "rank") {
      int64_t rank = 0;
      if (absl::SimpleAtoi(text, &rank)) info.rank = rank;
    }
    return true;
  }

  Source* source_;
  absl::FunctionRef<absl::Status(const ChromeEvent&)> visit_;
  int depth_ = 0;
  int events_depth_ = -1;  // Depth of the objects of events.
  bool object_ = false;    // Whether the file is an object.
  bool in_event_ = false;
  bool in_args_ = false;
  bool in_distributed_ = false;
  std::string key_{};
  ChromeEvent event_{};
};

}  // namespace

const std::string* ChromeEvent::Arg(absl::string_view key) const {
  for (const auto& [name_of, value] : args) {
    if (name_of == key) return &value;
  }
  return nullptr;
}

absl::StatusOr<ChromeTraceInfo> ReadChromeTrace(
    const std::string& file_name, const ChunkReader& read,
    absl::FunctionRef<absl::Status(const ChromeEvent&)> visit) {
  Source source(read);
  Handler handler(&source, visit);
  const bool whole =
      nlohmann::json::sax_parse(Bytes(&source), Bytes(nullptr), &handler);
  absl::Status status =
      !source.status().ok() ? source.status() : handler.status;
  if (status.ok() && !whole) {
    status = absl::InvalidArgumentError("not JSON");
  }
  if (status.ok() && !handler.seen_events) {
    status = absl::InvalidArgumentError(
        "there is no list of events: neither a list nor \"traceEvents\" in an "
        "object");
  }
  if (!status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrFormat("%s: at byte %d: %s", file_name, source.position(),
                        std::string(status.message())));
  }
  return handler.info;
}

}  // namespace pipeloom::formats
