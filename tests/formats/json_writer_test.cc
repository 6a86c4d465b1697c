#include "formats/text/json_writer.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pipeloom::formats {
namespace {

TEST(JsonWriterTest, WritesNestedValuesOnOneLineOrMany) {
  for (const bool lines : {false, true}) {
    JsonWriter json(lines);
    json.BeginObject().Key("a").BeginArray().Int(1).Number(0.5).Null();
    json.BeginObject().EndObject().BeginArray().EndArray().EndArray();
    json.Key("b").Bool(true).Key("c").Micros(Nanoseconds(-12345));
    json.Key("d").String("x").EndObject();
    const auto parsed = nlohmann::json::parse(json.text(), nullptr, false);
    ASSERT_FALSE(parsed.is_discarded()) << json.text();
    EXPECT_EQ(parsed.dump(),
              R"({"a":[1,0.5,null,{},[]],"b":true,"c":-12.345,"d":"x"})");
  }
}

TEST(JsonWriterTest, NumbersReadBackTheSameAndOthersAreNull) {
  const double values[] = {0.1, 1e300, 1.0 / 3, -0.0, 123456789.123};
  for (const double value : values) {
    JsonWriter json;
    json.Number(value);
    EXPECT_EQ(nlohmann::json::parse(json.text()).get<double>(), value);
  }
  JsonWriter json;
  json.BeginArray().Number(std::numeric_limits<double>::infinity());
  json.Number(std::numeric_limits<double>::quiet_NaN()).EndArray();
  EXPECT_EQ(json.text(), "[null, null]");
}

TEST(JsonWriterTest, EveryStringParsesBack) {
  const std::string valid[] = {"",
                               "plain",
                               "quote \" backslash \\ slash /",
                               std::string("nul \0 tab \t line \n bell \a", 25),
                               "\x7f",
                               "h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80",
                               "</script><!--"};
  for (const std::string& text : valid) {
    EXPECT_EQ(nlohmann::json::parse(QuoteJson(text)).get<std::string>(), text);
  }
  // No UTF-8: stray, cut short, overlong, a surrogate, beyond the last.
  for (const std::string text :
       {"\x80", "a\xff", "\xc3", "\xe2\x82", "\xc0\xaf", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf0\x9f\x98"}) {
    const auto parsed = nlohmann::json::parse(QuoteJson(text), nullptr, false);
    ASSERT_FALSE(parsed.is_discarded());
    EXPECT_NE(parsed.get<std::string>().find("\xef\xbf\xbd"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace pipeloom::formats
