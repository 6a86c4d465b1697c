#include "cli/console/files.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-files-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  int64_t NumFiles() const {
    return std::distance(std::filesystem::directory_iterator(folder_), {});
  }

  std::string folder_;
};

// Files of this process cannot grow beyond `bytes` while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(FilesTest, WhatIsWrittenIsRead) {
  std::string contents = "a\0b\n";
  contents.resize(200000, 'x');
  ASSERT_THAT(WriteFileAtomically(Path("f"), contents), IsOk());
  ASSERT_OK_AND_ASSIGN(const std::string read, ReadFile(Path("f")));
  EXPECT_EQ(read, contents);
  ASSERT_THAT(WriteFileAtomically(Path("f"), "new"), IsOk());
  ASSERT_OK_AND_ASSIGN(const std::string again, ReadFile(Path("f")));
  EXPECT_EQ(again, "new");
  EXPECT_EQ(NumFiles(), 1);
}

TEST_F(FilesTest, AFullDiskLeavesTheOldFileAndNothingElse) {
  ASSERT_THAT(WriteFileAtomically(Path("plan.pb"), "old"), IsOk());
  {
    const FileSizeLimit limit(1000);
    EXPECT_THAT(WriteFileAtomically(Path("plan.pb"), std::string(100000, 'x')),
                FailsWith(absl::StatusCode::kResourceExhausted,
                          AllOf(HasSubstr("plan.pb"), HasSubstr("too large"))));
    EXPECT_THAT(
        WriteFileAtomically(Path("new.pb"), std::string(100000, 'x')),
        FailsWith(absl::StatusCode::kResourceExhausted, HasSubstr("new.pb")));
  }
  ASSERT_OK_AND_ASSIGN(const std::string read, ReadFile(Path("plan.pb")));
  EXPECT_EQ(read, "old");
  EXPECT_EQ(NumFiles(), 1);
}

TEST_F(FilesTest, AFullDeviceIsAnError) {
  EXPECT_THAT(WriteFileAtomically("/dev/full", "x"),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        HasSubstr("cannot write /dev/full")));
}

TEST_F(FilesTest, KeepsPermissionsAndFollowsLinks) {
  ASSERT_THAT(WriteFileAtomically(Path("real"), "1"), IsOk());
  chmod(Path("real").c_str(), 0640);
  std::filesystem::create_symlink(Path("real"), Path("link"));
  ASSERT_THAT(WriteFileAtomically(Path("link"), "2"), IsOk());
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  ASSERT_OK_AND_ASSIGN(const std::string read, ReadFile(Path("real")));
  EXPECT_EQ(read, "2");
  struct stat info {};
  ASSERT_EQ(stat(Path("real").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(FilesTest, ErrorsNameTheFileAndTheReason) {
  EXPECT_THAT(ReadFile(Path("none")),
              FailsWith(absl::StatusCode::kNotFound,
                        AllOf(HasSubstr("none"), HasSubstr("No such file"))));
  EXPECT_THAT(ReadFile(folder_), FailsWith(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("directory")));
  EXPECT_THAT(WriteFileAtomically(Path("no/folder"), "x"),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr("no/folder")));
  EXPECT_THAT(
      WriteFileAtomically(folder_, "x"),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("directory")));
  ASSERT_THAT(WriteFileAtomically(Path("big"), "12345"), IsOk());
  EXPECT_THAT(ReadFile(Path("big"), 4),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("limit of 4 bytes")));
}

TEST_F(FilesTest, DataAreWhereTheFlagSaysOrNowhere) {
  EXPECT_THAT(FindDataDir(folder_),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr(folder_)));
  ASSERT_THAT(MakeFolder(Path("jobs")), IsOk());
  ASSERT_THAT(MakeFolder(Path("models")), IsOk());
  ASSERT_THAT(MakeFolder(Path("models")), IsOk());
  ASSERT_OK_AND_ASSIGN(const std::string found, FindDataDir(folder_));
  EXPECT_EQ(found, folder_);
}

}  // namespace
}  // namespace pipeloom::cli
