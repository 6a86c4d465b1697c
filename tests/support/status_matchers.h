// Matchers for absl::Status and absl::StatusOr:
//   EXPECT_THAT(Parse(text), IsOk());
//   EXPECT_THAT(Parse(text), FailsWith(absl::StatusCode::kInvalidArgument,
//                                      HasSubstr("line 3")));
//   ASSERT_OK_AND_ASSIGN(const Job job, Parse(text));
#ifndef PIPELOOM_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define PIPELOOM_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pipeloom::testing {

inline const absl::Status& GetStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << GetStatus(arg).ToString();
  return GetStatus(arg).ok();
}

MATCHER_P2(FailsWith, code, message,
           std::string("has code ") + absl::StatusCodeToString(code) +
               " and a message that " +
               ::testing::DescribeMatcher<std::string>(message)) {
  const absl::Status& status = GetStatus(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()),
                                       result_listener);
}

}  // namespace pipeloom::testing

#define ASSERT_OK_AND_ASSIGN(declaration, expression)                 \
  ASSERT_OK_AND_ASSIGN_IMPL_(                                         \
      ASSERT_OK_CONCAT_(pipeloom_test_value_, __LINE__), declaration, \
      expression)
#define ASSERT_OK_AND_ASSIGN_IMPL_(status_or, declaration, expression) \
  auto status_or = (expression);                                       \
  ASSERT_TRUE(status_or.ok()) << status_or.status();                   \
  declaration = *std::move(status_or)
#define ASSERT_OK_CONCAT_(a, b) ASSERT_OK_CONCAT_IMPL_(a, b)
#define ASSERT_OK_CONCAT_IMPL_(a, b) a##b

#endif  // PIPELOOM_TESTS_SUPPORT_STATUS_MATCHERS_H_
