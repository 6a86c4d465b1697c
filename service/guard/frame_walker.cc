#include "service/guard/frame_walker.h"

#include <algorithm>
#include <cstring>

namespace pipeloom::service {
namespace {

enum Type : unsigned char {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kPushPromise = 5,
  kWindowUpdate = 8,
  kContinuation = 9,
};

constexpr unsigned char kEndStream = 1;
constexpr unsigned char kEndHeaders = 4;
constexpr int64_t kControl = 20;  // A window update counts 1.

// Moves bytes into a frame's header. Returns whether it is complete.
bool Fill(absl::string_view* bytes,
          std::array<unsigned char, FrameWalker::kHeaderSize>* header,
          size_t* have) {
  const size_t more = std::min(header->size() - *have, bytes->size());
  std::memcpy(header->data() + *have, bytes->data(), more);
  *have += more;
  bytes->remove_prefix(more);
  return *have == header->size();
}

template <typename Header>
uint32_t LengthOf(const Header& header) {
  return uint32_t{header[0]} << 16 | uint32_t{header[1]} << 8 |
         uint32_t{header[2]};
}

template <typename Header>
uint32_t StreamOf(const Header& header) {
  return (uint32_t{header[5]} << 24 | uint32_t{header[6]} << 16 |
          uint32_t{header[7]} << 8 | uint32_t{header[8]}) &
         0x7fffffff;
}

}  // namespace

absl::string_view FrameWalker::Walk(absl::string_view bytes,
                                    Clock::time_point now) {
  const char* const begin = bytes.data();
  calls_.clear();
  resets_.clear();
  while (reason_.empty() && !bytes.empty()) {
    if (!has_preface()) {
      const absl::string_view expected = kPreface.substr(preface_);
      const size_t more = std::min(expected.size(), bytes.size());
      if (bytes.substr(0, more) != expected.substr(0, more)) {
        return reason_ = "no HTTP/2";
      }
      preface_ += more;
      bytes.remove_prefix(more);
      continue;
    }
    if (payload_ == 0) {
      if (!Fill(&bytes, &header_, &have_)) break;
      have_ = 0;
      payload_ = LengthOf(header_);
      reason_ = BeginFrame(now);
      const uint32_t stream = StreamOf(header_);
      if (header_[3] == kReset) resets_.push_back(stream);
      if (header_[3] == kHeaders && stream > newest_stream_) {
        newest_stream_ = stream;
        calls_.push_back(
            {.at = bytes.data() - begin - static_cast<int64_t>(kHeaderSize),
             .stream = stream});
      }
    }
    const auto more = std::min(payload_, static_cast<int64_t>(bytes.size()));
    payload_ -= more;
    bytes.remove_prefix(static_cast<size_t>(more));
    if (payload_ == 0 && last_of_block_) in_block_ = last_of_block_ = false;
  }
  return reason_;
}

absl::string_view FrameWalker::BeginFrame(Clock::time_point now) {
  const unsigned char type = header_[3];
  const uint32_t stream = StreamOf(header_);
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    header_bytes_ = 0;
    control_ = 0;
  }
  if (in_block_ && (type != kContinuation || stream != block_stream_)) {
    return "another frame within a header block";
  }
  switch (type) {
    case kHeaders:
      in_block_ = true;
      since_ = now;
      block_stream_ = stream;
      block_bytes_ = 0;
      block_frames_ = 0;
      return CountHeaders(payload_);
    case kContinuation:
      if (!in_block_) return "CONTINUATION without HEADERS";
      if (++block_frames_ > limits_.continuations) {
        return "too many CONTINUATION frames";
      }
      return CountHeaders(payload_);
    case kPushPromise:
      return "PUSH_PROMISE of a client";
    case kData:
      return payload_ == 0 ? CountControl(kControl) : absl::string_view();
    case kWindowUpdate:
      return CountControl(1);
    default:
      return CountControl(kControl);
  }
}

absl::string_view FrameWalker::CountHeaders(int64_t length) {
  last_of_block_ = (header_[4] & kEndHeaders) != 0;
  block_bytes_ += length;
  header_bytes_ += length;
  if (block_bytes_ > limits_.header_block) return "a header that is too large";
  if (header_bytes_ > limits_.header_bytes) {
    return "too many bytes of headers in a second";
  }
  return {};
}

absl::string_view FrameWalker::CountControl(int64_t frames) {
  control_ += frames;
  if (payload_ > limits_.control_frame_size) {
    return "a control frame that is too large";
  }
  if (control_ > kControl * limits_.control_frames) {
    return "too many control frames in a second";
  }
  return {};
}

void FrameBoundary::Walk(absl::string_view bytes) {
  started_ = started_ || !bytes.empty();
  ended_.clear();
  while (!bytes.empty()) {
    if (payload_ == 0) {
      if (!Fill(&bytes, &header_, &have_)) return;
      have_ = 0;
      payload_ = LengthOf(header_);
      const unsigned char type = header_[3];
      if (type == kReset || ((type == kData || type == kHeaders) &&
                             (header_[4] & kEndStream) != 0)) {
        ended_.push_back(StreamOf(header_));
      }
    }
    const size_t more = std::min(payload_, bytes.size());
    payload_ -= more;
    bytes.remove_prefix(more);
  }
}

}  // namespace pipeloom::service
