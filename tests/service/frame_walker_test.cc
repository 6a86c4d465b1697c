// The walker of frames against an oracle that reads all bytes at once.
#include "service/guard/frame_walker.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/service/rpc_by_hand.h"

namespace pipeloom::testing {
namespace {

using service::FrameBoundary;
using service::FrameLimits;
using service::FrameWalker;
using ::testing::HasSubstr;

const FrameWalker::Clock::time_point kNow{};

// Few of everything, so that random bytes meet the limits.
FrameLimits Small() {
  return {.header_block = 300,
          .continuations = 3,
          .header_bytes = 2000,
          .control_frames = 8,
          .control_frame_size = 200};
}

struct Opinion {
  bool refused = false;
  bool incomplete = false;  // A preface or a header block is.
};

// Reads a connection's bytes from the beginning, all in one second.
Opinion Judge(const std::string& bytes, const FrameLimits& limits) {
  const std::string preface(FrameWalker::kPreface);
  if (bytes.size() < preface.size()) {
    const bool fits = preface.compare(0, bytes.size(), bytes) == 0;
    return {.refused = !fits, .incomplete = true};
  }
  if (bytes.compare(0, preface.size(), preface) != 0) return {.refused = true};
  int64_t block = -1;  // Bytes; -1: none.
  int64_t block_stream = 0;
  int64_t continuations = 0;
  int64_t header_bytes = 0;
  int64_t updates = 0;
  int64_t control = 0;
  size_t at = preface.size();
  while (at + 9 <= bytes.size()) {
    const auto byte = [&](size_t i) {
      return static_cast<int64_t>(static_cast<unsigned char>(bytes[at + i]));
    };
    const int64_t size = (byte(0) * 256 + byte(1)) * 256 + byte(2);
    const int64_t type = byte(3);
    const int64_t stream =
        ((byte(5) % 128 * 256 + byte(6)) * 256 + byte(7)) * 256 + byte(8);
    if (block >= 0 && (type != 9 || stream != block_stream)) {
      return {.refused = true};
    }
    if (type == 5 || (type == 9 && block < 0)) return {.refused = true};
    if (type == 1) {
      block = 0;
      continuations = 0;
      block_stream = stream;
    }
    if (type == 9) ++continuations;
    if (type == 1 || type == 9) {
      block += size;
      header_bytes += size;
    } else if (type == 8) {
      ++updates;
    } else if (type != 0 || size == 0) {
      ++control;
    }
    if (block > limits.header_block || continuations > limits.continuations ||
        header_bytes > limits.header_bytes ||
        updates + 20 * control > 20 * limits.control_frames ||
        (type != 0 && type != 1 && type != 9 &&
         size > limits.control_frame_size)) {
      return {.refused = true};
    }
    const bool ends = block >= 0 && byte(4) / 4 % 2 == 1;
    at += 9 + static_cast<size_t>(size);
    if (at > bytes.size()) break;
    if (ends) block = -1;
  }
  return {.refused = false, .incomplete = block >= 0};
}

std::string RandomConnection(std::mt19937* random) {
  const auto below = [random](uint32_t most) { return (*random)() % most; };
  std::string bytes(FrameWalker::kPreface);
  if (below(20) == 0) bytes[below(24)] ^= 1;
  const int frames = static_cast<int>(below(40));
  bool in_block = false;
  for (int f = 0; f < frames; ++f) {
    const bool wild = below(30) == 0;
    // Mostly what is allowed, so that the walk gets far.
    const int allowed[] = {0, 0, 0, 1, 1, 8, 8, 4};
    const int type = wild       ? static_cast<int>(below(12))
                     : in_block ? 9
                                : allowed[below(8)];
    const int flags = static_cast<int>(below(2) * 4 + below(2));
    const size_t size = wild ? below(500) : below(type == 0 ? 400 : 60);
    bytes += Frame(static_cast<char>(type), static_cast<char>(flags),
                   std::string(size, static_cast<char>(below(256))),
                   static_cast<char>(in_block && !wild ? 1 : below(2) + 1));
    if (type == 1 || type == 9) in_block = (flags & 4) == 0;
  }
  return bytes;
}

TEST(FrameWalkerTest, AnySplitOfTheBytesGetsTheOpinionOfTheOracle) {
  int refused = 0;
  int incomplete = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const std::string bytes = RandomConnection(&random);
    FrameWalker walker(Small(), kNow);
    size_t at = 0;
    while (at < bytes.size()) {
      const size_t longest = random() % 4 == 0 ? 300 : 12;
      const size_t more =
          std::min<size_t>(1 + random() % longest, bytes.size() - at);
      const bool ends =
          !walker.Walk(absl::string_view(bytes).substr(at, more), kNow).empty();
      at += more;
      const Opinion opinion = Judge(bytes.substr(0, at), Small());
      ASSERT_EQ(ends, opinion.refused) << "seed " << seed << ", byte " << at;
      if (ends) {
        ++refused;
        break;
      }
      ASSERT_EQ(walker.incomplete_since().has_value(), opinion.incomplete)
          << "seed " << seed << ", byte " << at;
      incomplete += opinion.incomplete ? 1 : 0;
    }
  }
  // Both happen, so that the comparison says something.
  EXPECT_GT(refused, 500);
  EXPECT_LT(refused, 2900);
  EXPECT_GT(incomplete, 1000);
}

TEST(FrameWalkerTest, CallsAreTheHeadersOfNewStreams) {
  std::mt19937 random(1);
  std::string bytes = Preface();
  std::vector<size_t> begins;
  for (int c = 0; c < 50; ++c) {
    const auto stream = static_cast<char>(2 * c + 1);
    begins.push_back(bytes.size());
    bytes += Frame(1, 4, std::string(random() % 30, 'h'), stream);
    bytes += Frame(0, 0, std::string(1 + random() % 30, 'd'), stream);
    // Trailers, which begin no call, and the end of every fourth.
    bytes += Frame(1, 5, "", stream);
    if (c % 4 == 0) bytes += Frame(3, 0, std::string(4, '\0'), stream);
  }
  for (size_t piece = 1; piece < 300; piece += 7) {
    FrameWalker walker(FrameLimits(), kNow);
    std::vector<size_t> found;
    std::vector<uint32_t> resets;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      ASSERT_EQ(walker.Walk(absl::string_view(bytes).substr(at, piece), kNow),
                "");
      for (const FrameWalker::Call& call : walker.calls()) {
        EXPECT_EQ(call.stream, 2 * found.size() + 1);
        found.push_back(at + static_cast<size_t>(call.at));
      }
      resets.insert(resets.end(), walker.resets().begin(),
                    walker.resets().end());
    }
    EXPECT_EQ(found, begins);
    EXPECT_EQ(resets.size(), 13u);
    EXPECT_EQ(resets.back(), 97u);
  }
}

TEST(FrameWalkerTest, CountsBeginAnewEverySecond) {
  FrameWalker walker(Small(), kNow);
  ASSERT_EQ(walker.Walk(FrameWalker::kPreface, kNow), "");
  std::string most;
  for (int i = 0; i < 8; ++i) most += Frame(6, 0, "12345678", 0);
  for (int second = 0; second < 5; ++second) {
    EXPECT_EQ(walker.Walk(most, kNow + seconds(second)), "");
  }
  EXPECT_THAT(std::string(walker.Walk(Frame(6, 0, "12345678", 0),
                                      kNow + milliseconds(4999))),
              HasSubstr("control frames"));
}

TEST(FrameWalkerTest, AHeaderIsIncompleteFromItsFirstFrameToItsLastByte) {
  FrameWalker walker(FrameLimits(), kNow);
  EXPECT_EQ(walker.incomplete_since(), kNow);
  ASSERT_EQ(walker.Walk(Preface(), kNow), "");
  EXPECT_EQ(walker.incomplete_since(), std::nullopt);
  const std::string begin = Frame(1, 0, "0123456789");
  const std::string end = Frame(9, 4, "0123456789");
  const auto first = kNow + seconds(3);
  ASSERT_EQ(walker.Walk(begin, first), "");
  EXPECT_EQ(walker.incomplete_since(), first);
  for (const char& byte : end) {
    EXPECT_EQ(walker.incomplete_since(), first);
    ASSERT_EQ(walker.Walk({&byte, 1}, kNow + seconds(9)), "");
  }
  EXPECT_EQ(walker.incomplete_since(), std::nullopt);
}

TEST(FrameBoundaryTest, ItIsWhereFramesEnd) {
  std::mt19937 random(1);
  std::string bytes;
  std::vector<size_t> ends = {0};
  for (int f = 0; f < 200; ++f) {
    bytes += Frame(0, 0, std::string(random() % 300, 'x'));
    ends.push_back(bytes.size());
  }
  FrameBoundary boundary;
  EXPECT_TRUE(boundary.at_start());
  for (size_t at = 0; at < bytes.size();) {
    const size_t more = std::min<size_t>(1 + random() % 9, bytes.size() - at);
    boundary.Walk(absl::string_view(bytes).substr(at, more));
    at += more;
    EXPECT_EQ(boundary.at_boundary(),
              std::binary_search(ends.begin(), ends.end(), at))
        << at;
  }
  EXPECT_FALSE(boundary.at_start());
}

TEST(FrameBoundaryTest, StreamsEndByTheirLastFrames) {
  const std::string bytes = Frame(1, 4, "h", 1) + Frame(0, 0, "data", 1) +
                            Frame(1, 5, "t", 1) + Frame(0, 1, "data", 3) +
                            Frame(4, 1, "", 0) + Frame(6, 1, "12345678", 0) +
                            Frame(3, 0, std::string(4, '\0'), 5);
  for (size_t piece = 1; piece < bytes.size(); ++piece) {
    FrameBoundary boundary;
    std::vector<uint32_t> ended;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      boundary.Walk(absl::string_view(bytes).substr(at, piece));
      ended.insert(ended.end(), boundary.ended().begin(),
                   boundary.ended().end());
    }
    EXPECT_EQ(ended, (std::vector<uint32_t>{1, 3, 5})) << piece;
  }
}

}  // namespace
}  // namespace pipeloom::testing
