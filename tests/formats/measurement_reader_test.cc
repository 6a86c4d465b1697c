#include "formats/profile/measurement_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "formats/profile/op_query_reader.h"
#include "formats/text/csv_reader.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

MeasurementFile Read(const std::string& text,
                     const std::string& name = "m.csv") {
  auto file = ParseMeasurements(text, name);
  EXPECT_THAT(file, IsOk());
  return file.ok() ? *file : MeasurementFile();
}

// ---- CSV -------------------------------------------------------------------

TEST(Csv, ReadsQuotesLinesAndComments) {
  const auto table = ParseCsv(
      "\xef\xbb\xbf# made today\r\nName, Time-us\r\n\"a \"\"b\"\"\n,c\",2\r\n"
      "\r\n d ,3",
      "f.csv");
  ASSERT_THAT(table, IsOk());
  EXPECT_THAT(table->columns, ElementsAre("name", "time_us"));
  ASSERT_THAT(table->rows, SizeIs(2));
  EXPECT_THAT(table->rows[0].cells, ElementsAre("a \"b\"\n,c", "2"));
  EXPECT_EQ(table->rows[0].line, 3);
  EXPECT_THAT(table->rows[1].cells, ElementsAre("d", "3"));
  EXPECT_EQ(table->rows[1].line, 6);
}

TEST(Csv, KeepsAnEmptyLastCell) {
  const auto table = ParseCsv("a,b\n1,\n,\n", "f.csv");
  ASSERT_THAT(table, IsOk());
  ASSERT_THAT(table->rows, SizeIs(2));
  EXPECT_THAT(table->rows[0].cells, ElementsAre("1", ""));
}

TEST(Csv, RefusesWhatIsNoTable) {
  EXPECT_THAT(ParseCsv("", "f.csv"), FailsWith(kInvalid, HasSubstr("empty")));
  EXPECT_THAT(ParseCsv("a,b\n1,2\n1,2,3\n", "f.csv"),
              FailsWith(kInvalid,
                        AllOf(HasSubstr("f.csv:3"), HasSubstr("has 3 cells"))));
  EXPECT_THAT(ParseCsv("a,A\n", "f.csv"),
              FailsWith(kInvalid, HasSubstr("stands twice")));
  EXPECT_THAT(ParseCsv("a\n\n\"b\nc\n", "f.csv"),
              FailsWith(kInvalid, AllOf(HasSubstr("f.csv:3"),
                                        HasSubstr("never closes"))));
  EXPECT_THAT(ParseCsv("a\n\"b\"c\n", "f.csv"),
              FailsWith(kInvalid, HasSubstr("closing quote")));
  EXPECT_THAT(ParseCsv(std::string("a\n\0", 3), "f.csv"),
              FailsWith(kInvalid, HasSubstr("zero byte")));
}

// ---- Our own format --------------------------------------------------------

TEST(Measurements, ReadTheFormatOfOurScript) {
  const MeasurementFile file = Read(
      "op,device,dtype,pass,m,n,k,time_us,note\n"
      "gemm,h100-sxm,bf16,forward,64,128,256,9.5,sm 1980 MHz\n"
      "gemm,h100-sxm,fp8,weight_grad,64,128,256,7,\n");
  ASSERT_THAT(file.points, SizeIs(2));
  EXPECT_EQ(ToString(file.points[0].query),
            "gemm m=64 n=128 k=256 forward bf16");
  EXPECT_EQ(ToString(file.points[1].query),
            "gemm m=64 n=128 k=256 weight_grad fp8");
  EXPECT_EQ(file.points[1].time_us, 7);
  EXPECT_EQ(file.points[1].line, 3);
  ASSERT_THAT(file.devices, SizeIs(1));
  EXPECT_EQ(file.devices[0].device, "h100-sxm");
  EXPECT_EQ(file.devices[0].line, 2);
}

TEST(Measurements, ReadEachOperator) {
  const MeasurementFile file = Read(
      "op,pass,tokens,width,parameters,kernels,heads,ffn,dtype,time_us\n"
      "rmsnorm,backward,64,128,,,,,bf16,1\n"
      "swiglu,forward,64,128,,,,,bf16,1\n"
      "optimizer,forward,,,1000,,,,fp32,1\n"
      "small_layer,forward,16,64,,23,2,128,bf16,1\n");
  ASSERT_THAT(file.points, SizeIs(4));
  EXPECT_EQ(ToString(file.points[2].query),
            "optimizer parameters=1000 forward fp32");
  EXPECT_EQ(file.points[3].query.kernels, 23);
}

// ---- Public formats --------------------------------------------------------

TEST(Measurements, ReadAiConfiguratorTables) {
  const MeasurementFile gemm =
      Read("m,n,k,us\n1,32,64,2.454\n", "gemm_a100_sxm_fp8_vllm_0.14.0.csv");
  ASSERT_THAT(gemm.points, SizeIs(1));
  EXPECT_EQ(ToString(gemm.points[0].query), "gemm m=1 n=32 k=64 forward fp8");
  ASSERT_THAT(gemm.devices, SizeIs(1));
  EXPECT_EQ(gemm.devices[0].device, "a100-sxm");
  EXPECT_EQ(gemm.devices[0].line, 0);

  const MeasurementFile causal =
      Read("batch,seq,heads,kv_heads,head_dim,us\n4,512,8,2,128,12\n",
           "attn_causal_fwd_h100_sxm.csv");
  EXPECT_EQ(ToString(causal.points[0].query),
            "attention batch=4 seq=512 heads=8 kv_heads=2 head_dim=128 causal "
            "forward bf16");
  const MeasurementFile encoder =
      Read("dtype,batch,seq,heads,head_dim,us\nbfloat16,1,13,2,64,8\n",
           "attn_encoder_fwd_l40s.csv");
  EXPECT_EQ(encoder.points[0].query.mask, QueryMask::kFull);
  EXPECT_EQ(encoder.points[0].query.kv_heads, 2);

  const MeasurementFile nccl = Read(
      "op,dtype,num_gpus,bytes,us\nalltoall,int8,8,4096,8.14\n", "nccl.csv");
  EXPECT_EQ(ToString(nccl.points[0].query),
            "all_to_all bytes=4096 ranks=8 node");
}

TEST(Measurements, TurnTheLayoutsOfProductsIntoPasses) {
  // 4096 tokens, 1536 outputs, 5120 inputs, each as its own product.
  const MeasurementFile file = Read(
      "gpu,b,m,k,n,layout,accumulate,out_dtype,efficiency,us\n"
      "B200,1,4096,5120,1536,TN,False,bf16,0.78,262\n"
      "B200,1,4096,1536,5120,NN,False,bf16,0.78,262\n"
      "B200,1,1536,4096,5120,NT,True,fp32,0.62,330\n");
  ASSERT_THAT(file.points, SizeIs(3));
  for (const OpMeasurement& point : file.points) {
    EXPECT_EQ(point.query.m, 4096) << point.line;
    EXPECT_EQ(point.query.n, 1536) << point.line;
    EXPECT_EQ(point.query.k, 5120) << point.line;
  }
  EXPECT_EQ(file.points[1].query.pass, QueryPass::kInputGrad);
  EXPECT_EQ(file.points[2].query.pass, QueryPass::kWeightGrad);
}

TEST(Measurements, TakeBothPassesOfARowAndLeaveOutWhatFailed) {
  const MeasurementFile file = Read(
      "backend,data_type,attn_mask,batch_size,q_seqlen,kv_seqlen,num_q_heads,"
      "num_kv_heads,head_dim_qk,head_dim_vo,deterministic_bwd,fwd_time_ms,"
      "bwd_time_ms,success,error_message,gpu_name\n"
      "cudnn,bfloat16,top_left,1,4096,4096,64,8,128,128,False,0.465,1.45,True,,"
      "NVIDIA H200\n"
      "cudnn,bfloat16,no_mask,1,4096,4096,64,8,128,128,True,0.819,2.9,True,,"
      "NVIDIA H200\n"
      "cudnn,bfloat16,no_mask,1,8192,8192,64,8,128,128,False,inf,inf,False,"
      "\"two\nlines\",\n"
      "cudnn,bfloat16,no_mask,1,4096,4096,128,128,192,128,False,1,2,True,,\n");
  ASSERT_THAT(file.points, SizeIs(3));
  EXPECT_EQ(file.points[0].time_us, 465);
  EXPECT_EQ(file.points[1].time_us, 1450);
  EXPECT_EQ(file.points[1].query.pass, QueryPass::kBackward);
  EXPECT_EQ(file.points[2].query.mask, QueryMask::kFull);
  EXPECT_EQ(file.devices.front().device, "NVIDIA H200");
  ASSERT_THAT(file.warnings, SizeIs(1));
  EXPECT_THAT(file.warnings[0],
              AllOf(HasSubstr("3 times left out"), HasSubstr("line 3")));
}

TEST(Measurements, ReadNetworksOfVidurAndVTrain) {
  const MeasurementFile vidur = Read(
      "num_workers,devices_per_node,size,median_ms,min_ms,max_ms\n"
      "2,2,2048,0.005,0.005,0.006\n2,1,2048,0.017,0.01,0.02\n",
      "net_h100_dgx_send_recv.csv");
  ASSERT_THAT(vidur.points, SizeIs(2));
  EXPECT_EQ(ToString(vidur.points[0].query),
            "send_recv bytes=2048 ranks=2 node");
  EXPECT_EQ(vidur.points[1].query.span, QuerySpan::kInterNode);
  EXPECT_EQ(vidur.points[1].time_us, 17);
  const MeasurementFile vtrain =
      Read("gpu,num_gpus,bytes,oop_ns,oop_busbw_GBs\na100,3,8388608,86900,96\n",
           "vtrain_allreduce_a100.csv");
  EXPECT_EQ(ToString(vtrain.points[0].query),
            "all_reduce bytes=8388608 ranks=3 node");
  EXPECT_DOUBLE_EQ(vtrain.points[0].time_us, 86.9);
}

TEST(Measurements, RefuseWhatLeavesADoubt) {
  const struct {
    std::string text;
    std::string error;
  } cases[] = {
      {"a,b,us\n1,2,3\n", "tell no operator"},
      {"m,n,k\n1,2,3\n", "no column holds times"},
      {"m,n,k,us\n", "no measurement"},
      {"m,n,k,us\n1,2,3,0\n", "column \"us\" is \"0\""},
      {"m,n,k,us\n1,2,3,-4\n", "a time above 0"},
      {"m,n,k,us\n1,2,3,nan\n", "a time above 0"},
      {"m,n,k,us\n1,2,3,inf\n", "a time above 0"},
      {"m,n,k,us\n1,2,3,fast\n", "a time above 0"},
      {"m,n,k,us\n1,2.5,3,4\n", "a whole number"},
      {"m,n,k,us\n1,0,3,4\n", "field \"n\" of gemm is 0"},
      {"seq,heads,head_dim,us\n1,2,3,4\n", "nothing tells the mask"},
      {"op,us\nfoo,4\n", "column \"op\" is \"foo\""},
      {"op,m,us\ngemm,1,4\n", "gemm needs a column \"n\""},
      {"m,n,k,dtype,us\n1,2,3,int4,4\n", "column \"dtype\""},
      {"m,n,k,layout,us\n1,2,3,XX,4\n", "one of TN, NN, NT"},
      {"op,pass,m,n,k,us\ngemm,backward,1,2,3,4\n", "field \"pass\" of gemm"},
      {"m,n,k,backend,us\n1,2,3,cudnn,4\n1,2,3,torch,4\n", "keep one"},
      {"seq,heads,kv_heads,head_dim,mask,us\n1,6,4,8,full,4\n", "a divisor"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(
        ParseMeasurements(c.text, "m.csv"),
        FailsWith(kInvalid, AllOf(HasSubstr("m.csv:"), HasSubstr(c.error))))
        << c.text;
  }
}

// ---- Cost queries ----------------------------------------------------------

TEST(OpQueries, ReadOneALineWithDefaults) {
  const auto gemm = ParseOpQuery(
      R"({"op": "gemm", "m": 1, "n": 2, "k": 3, "pass": "input_grad"})", "q",
      7);
  ASSERT_THAT(gemm, IsOk());
  EXPECT_EQ(ToString(gemm->query), "gemm m=1 n=2 k=3 input_grad bf16");
  const auto send =
      ParseOpQuery(R"({"op": "send_recv", "bytes": 5, "id": "x"})", "q", 7);
  ASSERT_THAT(send, IsOk());
  EXPECT_EQ(send->query.ranks, 2);
  EXPECT_EQ(send->extra, "id");
  const auto norm =
      ParseOpQuery(R"({"op": "rms_norm", "tokens": 5, "hidden": 6})", "q", 7);
  ASSERT_THAT(norm, IsOk());
  EXPECT_EQ(norm->query.width, 6);
  const auto attention = ParseOpQuery(
      R"({"op": "attention", "seq": 5, "heads": 6, "head_dim": 8,
          "causal": false})",
      "q", 7);
  ASSERT_THAT(attention, IsOk());
  EXPECT_EQ(attention->query.mask, QueryMask::kFull);
  EXPECT_EQ(attention->query.kv_heads, 6);
}

TEST(OpQueries, RefuseWithLineFieldAndValue) {
  const struct {
    std::string line;
    std::string error;
  } cases[] = {
      {"{", "q:7"},
      {"[1]", "it must be an object"},
      {"{\"m\": 1}", "field \"op\" is missing"},
      {R"({"op": "gem", "m": 1})", "field \"op\" is \"gem\""},
      {R"({"op": "gemm", "m": 1, "n": 2})", "field \"k\" is missing"},
      {R"({"op": "gemm", "m": 1, "n": 2, "kk": 3})", "field \"k\" is missing"},
      {R"({"op": "gemm", "m": -1, "n": 2, "k": 3})", "field \"m\" is -1"},
      {R"({"op": "gemm", "m": 1.5, "n": 2, "k": 3})", "field \"m\" is 1.5"},
      {R"({"op": "gemm", "m": 1e30, "n": 2, "k": 3})", "field \"m\""},
      {R"({"op": "gemm", "m": 1, "n": 2, "k": 3, "dtype": "int4"})",
       "field \"dtype\" is \"int4\""},
      {R"({"op": "gemm", "m": 1, "n": 2, "k": 3, "pass": "backward"})",
       "field \"pass\""},
      {R"({"op": "all_reduce", "bytes": 8, "ranks": 0})", "field \"ranks\""},
      {R"({"op": "all_reduce", "bytes": 8, "ranks": 8, "span": "rack"})",
       "field \"span\" is \"rack\""},
      {R"({"op": "attention", "seq": 4, "heads": 3, "kv_heads": 2,
           "head_dim": 8})",
       "a divisor of heads"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ParseOpQuery(c.line, "q", 7),
                FailsWith(kInvalid, AllOf(HasSubstr("q:"), HasSubstr(c.error))))
        << c.line;
  }
}

std::string Answered(const std::string& line) {
  const auto parsed = ParseOpQuery(line, "q", 1);
  EXPECT_THAT(parsed, IsOk()) << line;
  if (!parsed.ok()) return "";
  return AnswerLine(line, *parsed, "1.5", "measured");
}

TEST(OpQueries, AreAnsweredInTheirOwnLine) {
  EXPECT_EQ(Answered("{\"op\":\"optimizer\", \"parameters\":3 } \r"),
            "{\"op\":\"optimizer\", \"parameters\":3, \"time_us\": 1.5, "
            "\"source\": \"measured\"}");
}

TEST(OpQueries, LoseAnAnswerThatTheyHave) {
  EXPECT_EQ(Answered("{\"time_us\": 9, \"op\":\"optimizer\", \"note\": "
                     "\"a,}\\\"]\", \"x\": [1, {\"source\": 2}], "
                     "\"parameters\":3, \"source\": \"s\"}"),
            "{\"op\":\"optimizer\", \"note\": \"a,}\\\"]\", \"x\": [1, "
            "{\"source\": 2}], \"parameters\":3, \"time_us\": 1.5, \"source\": "
            "\"measured\"}");
}

}  // namespace
}  // namespace pipeloom::formats
