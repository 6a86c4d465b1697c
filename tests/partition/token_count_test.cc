#include "partition/batching/token_count.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pipeloom::partition {
namespace {

// A model of one module; token counting never looks at its layers.
ModelSpec OneModule(ModuleRole role, std::vector<TokenRule> rules) {
  ModuleSpec module;
  module.name = "module";
  module.role = role;
  module.token_rules = std::move(rules);
  ModelSpec model;
  model.modules = {module};
  return model;
}

WorkShape WorkOf(const TokenRule& rule, const SampleMetadata& sample) {
  return SampleWork(OneModule(ModuleRole::kEncoder, {rule}),
                    sample)[ModuleId(0)];
}
WorkShape ImageWork(const TokenRule& rule, int32_t width, int32_t height) {
  return WorkOf(rule, {.images = {{.width = width, .height = height}}});
}
WorkShape ClipWork(const TokenRule& rule, const VideoClip& clip) {
  return WorkOf(rule, {.videos = {clip}});
}

TokenRule DipImages() {
  return {.kind = TokenRuleKind::kFixedSquare,
          .modality = Modality::kImage,
          .side = 728,
          .patch = 14,
          .merge = 4};
}
TokenRule QwenImages() {
  return {.kind = TokenRuleKind::kDynamicResolution,
          .modality = Modality::kImage,
          .patch = 14,
          .merge = 2,
          .min_tokens = 4,
          .max_tokens = 16384};
}
TokenRule QwenVideo() {
  return {.kind = TokenRuleKind::kDynamicResolution,
          .modality = Modality::kVideo,
          .patch = 14,
          .merge = 2,
          .min_tokens = 128,
          .max_tokens = 768,
          .max_total_tokens = 115200,
          .fps = 2,
          .min_frames = 4,
          .max_frames = 768};
}
TokenRule InternVlImages() {
  return {.kind = TokenRuleKind::kTiles,
          .modality = Modality::kImage,
          .side = 448,
          .max_tiles = 12,
          .tokens_per_tile = 1025,
          .output_tokens_per_tile = 256,
          .extra_tokens = 2};
}
TokenRule Step3Images() {
  return {.kind = TokenRuleKind::kGlobalAndCrops,
          .modality = Modality::kImage,
          .side = 728,
          .patch = 14,
          .output_tokens_per_tile = 169,
          .crop_side = 504,
          .output_tokens_per_crop = 81,
          .extra_tokens = 2};
}
TokenRule StepVideoLatents() {
  return {.kind = TokenRuleKind::kLatent,
          .modality = Modality::kVideo,
          .spatial_stride = 16,
          .frame_group = 17,
          .latents_per_group = 3};
}
TokenRule Audio(double rate, double output_rate, double chunk) {
  return {.kind = TokenRuleKind::kAudioRate,
          .modality = Modality::kAudio,
          .tokens_per_second = rate,
          .output_tokens_per_second = output_rate,
          .chunk_seconds = chunk};
}

// Case G3.
TEST(TokenCountTest, AnImageOfTheDipPaperIs2704TokensInAnd169Out) {
  const WorkShape work = ImageWork(DipImages(), 1024, 768);
  EXPECT_EQ(work.instances, 1);
  EXPECT_EQ(work.tokens, 2704);
  EXPECT_EQ(work.output_tokens, 169);
  EXPECT_EQ(work.squared_tokens, 2704.0 * 2704.0);
  EXPECT_EQ(8192 / work.output_tokens, 48);
  EXPECT_EQ(ImageWork(DipImages(), 0, 0), work) << "its size does not matter";
}

struct ResizeCase {
  int32_t width;
  int32_t height;
  int64_t output_tokens;
};

// Expected values worked out by hand from the rule: both sides to multiples
// of 28, half to even; too many or too few are scaled by the square root.
TEST(TokenCountTest, QwenImagesAreRoundedThenScaledToTheirLimits) {
  const ResizeCase cases[] = {
      {1024, 768, 37 * 27},
      {28, 28, 4},              // Scaled up to the least, 2 x 2.
      {70, 42, 4},              // 2.5 -> 2 and 1.5 -> 2.
      {98, 42, 8},              // 3.5 -> 4.
      {300, 20, 11},            // 10.7 -> 11 and 0.7 -> 1.
      {156, 2, 18},             // 0.07 -> 0; scaled by sqrt(3136 / 312).
      {280, 7, 13},             // 0.25 -> 0; scaled by sqrt(3136 / 1960).
      {6000, 4000, 156 * 104},  // sqrt(16384 x 1.5) and its 2/3, with floor.
      {8000, 3000, 209 * 78},
      {4480, 2800, 160 * 100},  // Just fits.
  };
  for (const ResizeCase& c : cases) {
    const WorkShape work = ImageWork(QwenImages(), c.width, c.height);
    EXPECT_EQ(work.output_tokens, c.output_tokens)
        << c.width << " x " << c.height;
    EXPECT_EQ(work.tokens, 4 * work.output_tokens);
    EXPECT_EQ(work.squared_tokens, std::pow(work.tokens, 2));
    EXPECT_EQ(ImageWork(QwenImages(), c.height, c.width), work)
        << "turned by 90 degrees";
  }
}

TEST(TokenCountTest, QwenImagesStayInTheirLimitsAtAnySizeAndAspect) {
  Random random(3);
  TokenRule rule = QwenImages();
  for (int trial = 0; trial < 5000; ++trial) {
    rule.max_tokens = random.Below(2) == 0 ? 16384 : 64;
    const auto side = [&] {
      return static_cast<int32_t>(1 +
                                  random.Below(int64_t{1} << random.Below(31)));
    };
    const int32_t width = side();
    const int32_t height = side();
    const int64_t out = ImageWork(rule, width, height).output_tokens;
    ASSERT_GE(out, 4) << width << " x " << height;
    ASSERT_LE(out, rule.max_tokens) << width << " x " << height;
  }
}

TEST(TokenCountTest, AnyResolutionKeepsTheGridWithoutItsMargins) {
  const TokenRule rule = {.kind = TokenRuleKind::kAnyResolution,
                          .modality = Modality::kImage,
                          .side = 384,
                          .patch = 14,
                          .max_tokens = 9 * 729,
                          .max_tiles = 6};
  // One tile of 27 x 27, a token for each of its rows, and the view.
  WorkShape work = ImageWork(rule, 384, 384);
  EXPECT_EQ(work.tokens, 2 * 729);
  EXPECT_EQ(work.sequences, 2);
  EXPECT_EQ(work.output_tokens, 729 + 27 * 27 + 27);
  // Two tiles side by side, 54 x 27, of which the image fills 15 rows.
  work = ImageWork(rule, 768, 214);
  EXPECT_EQ(work.tokens, 3 * 729);
  EXPECT_EQ(work.output_tokens, 729 + 15 * 54 + 15);
  // 6 x 6 tiles, scaled to 9 of them: 81 x 81.
  work = ImageWork(rule, 2304, 2304);
  EXPECT_EQ(work.tokens, 37 * 729);
  EXPECT_EQ(work.output_tokens, 729 + 81 * 81 + 81);
  // Each of several images is one view.
  work = WorkOf(rule, {.images = {{.width = 2304, .height = 2304},
                                  {.width = 384, .height = 384}}});
  EXPECT_EQ(work.tokens, 2 * 729);
  EXPECT_EQ(work.output_tokens, 2 * 730);
}

TEST(TokenCountTest, QwenVideoPairsFramesAtTwoASecond) {
  // 4 s: 8 frames, 4 pairs; 640 x 360 is 23 x 13 = 299 tokens a grid.
  const WorkShape work =
      ClipWork(QwenVideo(),
               {.frames = 120, .width = 640, .height = 360, .seconds = 4.0});
  EXPECT_EQ(work.instances, 1);
  EXPECT_EQ(work.output_tokens, 4 * 299);
  EXPECT_EQ(work.tokens, 4 * 299 * 4);
  EXPECT_EQ(work.squared_tokens, 4 * std::pow(299 * 4, 2))
      << "each pair is a sequence of its own";
  // Seconds unknown: 120 frames are 4 s.
  EXPECT_EQ(ClipWork(QwenVideo(), {.frames = 120, .width = 640, .height = 360}),
            work);
  // At least 4 frames, but not more than there are.
  EXPECT_EQ(ClipWork(QwenVideo(), {.frames = 30, .width = 640, .height = 360})
                .output_tokens,
            2 * 299);
  EXPECT_EQ(ClipWork(QwenVideo(), {.frames = 3, .width = 640, .height = 360})
                .output_tokens,
            299);
  // A large frame: at most 768 tokens a grid, 36 x 20 at 16:9.
  EXPECT_EQ(
      ClipWork(QwenVideo(), {.width = 1920, .height = 1080, .seconds = 2.0})
          .output_tokens,
      2 * 720);
}

TEST(TokenCountTest, LongQwenVideosShareTheTotal) {
  const WorkShape work =
      ClipWork(QwenVideo(), {.width = 1920, .height = 1080, .seconds = 7200});
  EXPECT_EQ(work.tokens, 4 * work.output_tokens);
  EXPECT_LE(work.output_tokens, 115200);
  // 384 grids of at most 300: 23 x 12.
  EXPECT_EQ(work.output_tokens, 384 * 23 * 12);
}

struct TileCase {
  int32_t width;
  int32_t height;
  int64_t tiles;
};

TEST(TokenCountTest, InternVlTakesTheGridOfTheNearestAspectAndAThumbnail) {
  const TileCase cases[] = {
      {448, 448, 1},       // Alone: no thumbnail.
      {896, 448, 2 + 1},   // 2 x 1.
      {800, 600, 12 + 1},  // 4 x 3 exactly, whatever its area.
      {1000, 200, 5 + 1},
      {200, 1000, 5 + 1},
      {5000, 100, 12 + 1},
      // Squares: 2 x 2 only if the image fills over half of it (634 px a
      // side), 3 x 3 from 951 px.
      {633, 633, 1},
      {634, 634, 4 + 1},
      {950, 950, 4 + 1},
      {951, 951, 9 + 1},
  };
  for (const TileCase& c : cases) {
    const WorkShape work = ImageWork(InternVlImages(), c.width, c.height);
    EXPECT_EQ(work.tokens, c.tiles * 1025) << c.width << " x " << c.height;
    EXPECT_EQ(work.output_tokens, c.tiles * 256 + 2);
    EXPECT_EQ(work.squared_tokens,
              static_cast<double>(c.tiles) * 1025.0 * 1025.0);
  }
}

TEST(TokenCountTest, Step3ImagesAreAGlobalViewAndCrops) {
  // Within the global view and not oblong: 169 and its two markers.
  EXPECT_EQ(ImageWork(Step3Images(), 728, 500).output_tokens, 169 + 2);
  EXPECT_EQ(ImageWork(Step3Images(), 728, 500).tokens, 52 * 52);
  // 1008 x 1008: 2 x 2 crops of 504 px, and one row break.
  const WorkShape work = ImageWork(Step3Images(), 1008, 1008);
  EXPECT_EQ(work.tokens, 52 * 52 + 4 * 36 * 36);
  EXPECT_EQ(work.output_tokens, 169 + 2 + 4 * (81 + 2) + 1);
  EXPECT_EQ(work.squared_tokens, std::pow(52, 4) + 4 * std::pow(36, 4));
  // 1100 / 504 = 2.18 stays 2; 1110 / 504 = 2.202 makes 3.
  EXPECT_EQ(ImageWork(Step3Images(), 1100, 504).tokens, 52 * 52 + 2 * 1296);
  EXPECT_EQ(ImageWork(Step3Images(), 1110, 504).tokens, 52 * 52 + 3 * 1296);
  // Sides end at 3024 px: 6 x 6 crops.
  EXPECT_EQ(ImageWork(Step3Images(), 20000, 20000).tokens, 52 * 52 + 36 * 1296);
  // Without marker tokens rows have none either.
  TokenRule bare = Step3Images();
  bare.extra_tokens = 0;
  EXPECT_EQ(ImageWork(bare, 1008, 1008).output_tokens, 169 + 4 * 81);
}

struct LatentCase {
  int64_t group;
  int64_t latents;
  VideoClip clip;
  int64_t tokens;
};

// The counts the models' own documents give.
TEST(TokenCountTest, VideoLatentsAreCountedAsTheModelsReport) {
  const LatentCase cases[] = {
      {17, 3, {.frames = 204, .width = 992, .height = 544}, 75'888},
      {17, 3, {.frames = 204, .width = 768, .height = 768}, 82'944},
      {17, 3, {.frames = 136, .width = 992, .height = 544}, 50'592},
      {17, 3, {.frames = 102, .width = 768, .height = 768}, 18 * 48 * 48},
      {4, 1, {.frames = 81, .width = 832, .height = 480}, 32'760},
      {4, 1, {.frames = 81, .width = 1280, .height = 720}, 75'600},
      {4, 1, {.frames = 129, .width = 1280, .height = 720}, 118'800},
      {4, 1, {.frames = 49, .width = 720, .height = 480}, 17'550},
  };
  for (const LatentCase& c : cases) {
    TokenRule rule = StepVideoLatents();
    rule.frame_group = c.group;
    rule.latents_per_group = c.latents;
    const WorkShape work = ClipWork(rule, c.clip);
    EXPECT_EQ(work.tokens, c.tokens) << c.clip.frames;
    EXPECT_EQ(work.squared_tokens, std::pow(static_cast<double>(c.tokens), 2));
  }
}

TEST(TokenCountTest, LatentClipsAreCutSampledAndGivenADefaultSize) {
  TokenRule rule = StepVideoLatents();
  rule.frame_group = 8;
  rule.latents_per_group = 1;
  rule.fps = 16;
  rule.max_seconds = 16;
  rule.default_width = 256;
  rule.default_height = 256;
  EXPECT_EQ(ClipWork(rule, {.seconds = 16}).tokens, 32 * 256);
  EXPECT_EQ(ClipWork(rule, {.seconds = 60}).tokens, 32 * 256);
  EXPECT_EQ(ClipWork(rule, {.frames = 240}).tokens, 16 * 256) << "8 s at 30/s";
  EXPECT_EQ(ClipWork(rule, {}).tokens, 256) << "nothing known: one frame";
  EXPECT_EQ(WorkOf({.kind = TokenRuleKind::kLatent,
                    .modality = Modality::kImage,
                    .spatial_stride = 16},
                   {.images = {{.width = 1024, .height = 1024}}})
                .tokens,
            4096)
      << "FLUX: one latent frame an image";
}

TEST(TokenCountTest, TextInTheSequenceOfALatentIsNotHandedOn) {
  const WorkShape work = WorkOf({.kind = TokenRuleKind::kLatent,
                                 .modality = Modality::kImage,
                                 .extra_tokens = 256,
                                 .spatial_stride = 16},
                                {.images = {{.width = 256, .height = 256},
                                            {.width = 512, .height = 256}}});
  EXPECT_EQ(work.instances, 2);
  EXPECT_EQ(work.tokens, (256 + 256) + (512 + 256));
  EXPECT_EQ(work.output_tokens, 256 + 512);
  EXPECT_EQ(work.squared_tokens, 512.0 * 512 + 768.0 * 768);
}

TEST(TokenCountTest, AudioIsCountedByRateAndChunk) {
  // Whisper and its followers: 50/s in and 25/s out, windows of 30 s.
  const WorkShape work =
      WorkOf(Audio(50, 25, 30), {.audio_seconds = {70.0, 0.0, 2.0}});
  EXPECT_EQ(work.instances, 4) << "30 + 30 + 10, and 2";
  EXPECT_EQ(work.tokens, 50 * 72);
  EXPECT_EQ(work.output_tokens, 25 * 72);
  EXPECT_EQ(work.squared_tokens,
            2 * 1500.0 * 1500.0 + 500.0 * 500.0 + 100.0 * 100.0);
  EXPECT_EQ(WorkOf(Audio(25, 25, 0), {.audio_seconds = {12.0}}).squared_tokens,
            300.0 * 300.0)
      << "no chunks: one sequence";
  EXPECT_EQ(WorkOf(Audio(25, 25, 2), {.audio_seconds = {0.3}}).tokens, 8)
      << "7.5 rounds up";
}

TEST(TokenCountTest, TextIsCutToItsLimit) {
  const TokenRule rule{.kind = TokenRuleKind::kText, .max_tokens = 320};
  EXPECT_EQ(WorkOf(rule, {.text_tokens = 100}).tokens, 100);
  EXPECT_EQ(WorkOf(rule, {.text_tokens = 1000}).tokens, 320);
  EXPECT_TRUE(WorkOf(rule, {}).empty());
}

TEST(TokenCountTest, ModulesWithNothingToDoAreEmpty) {
  for (const TokenRule& rule :
       {DipImages(), QwenVideo(), Audio(25, 25, 2), StepVideoLatents()}) {
    EXPECT_TRUE(WorkOf(rule, {.text_tokens = 10}).empty());
  }
  EXPECT_TRUE(SampleWork(OneModule(ModuleRole::kGenerator, {}),
                         {.text_tokens = 5})[ModuleId(0)]
                  .empty());
  EXPECT_TRUE(SampleWork(OneModule(ModuleRole::kBackbone, {}), {})[ModuleId(0)]
                  .empty());
}

// encoder -> projector (no rule of its own) -> backbone -> generator, which
// has the backbone's output as its context.
ModelSpec Chain() {
  ModelSpec model = OneModule(ModuleRole::kEncoder, {DipImages()});
  ModuleSpec projector;
  projector.role = ModuleRole::kEncoder;
  ModuleSpec backbone;
  ModuleSpec generator;
  generator.role = ModuleRole::kGenerator;
  TokenRule latents = StepVideoLatents();
  latents.modality = Modality::kImage;
  generator.token_rules = {latents};
  model.modules.push_back(projector);
  model.modules.push_back(backbone);
  model.modules.push_back(generator);
  model.edges = {{.from = ModuleId(0), .to = ModuleId(1)},
                 {.from = ModuleId(1), .to = ModuleId(2)},
                 {.from = ModuleId(2), .to = ModuleId(3), .as_context = true}};
  return model;
}

TEST(TokenCountTest, ABackboneCountsItsTextAndWhatFeedsIt) {
  const auto work = SampleWork(
      Chain(), {.text_tokens = 100, .images = {{320, 320}, {640, 320}}});
  const WorkShape& projector = work[ModuleId(1)];
  EXPECT_EQ(projector.instances, 2);
  EXPECT_EQ(projector.tokens, 2 * 169);
  const WorkShape& backbone = work[ModuleId(2)];
  EXPECT_EQ(backbone.instances, 1);
  EXPECT_EQ(backbone.tokens, 100 + 2 * 169);
  EXPECT_EQ(backbone.output_tokens, 438);
  EXPECT_EQ(backbone.squared_tokens, 438.0 * 438.0);
  // Each image attends to all of it.
  const WorkShape& generator = work[ModuleId(3)];
  EXPECT_EQ(generator.instances, 2);
  EXPECT_EQ(generator.tokens, 400 + 800);
  EXPECT_EQ(generator.context_tokens, 2 * 438);
  EXPECT_EQ(generator.context_pairs, 1200.0 * 438.0);
}

TEST(TokenCountTest, ABackbonesOwnRulesStandForItsText) {
  // Discrete audio tokens in addition to the text, 41.7 per second.
  const ModelSpec model =
      OneModule(ModuleRole::kBackbone,
                {{.kind = TokenRuleKind::kText}, Audio(41.7, 41.7, 0)});
  const WorkShape work = SampleWork(
      model, {.text_tokens = 83, .audio_seconds = {10.0}})[ModuleId(0)];
  EXPECT_EQ(work.instances, 1);
  EXPECT_EQ(work.tokens, 83 + 417);
  EXPECT_EQ(work.squared_tokens, 250'000.0);
}

TEST(TokenCountTest, ABackboneDoesNotCountWhatFeedsItTwice) {
  // An autoencoder hands latents to a transformer that counts them itself; an
  // image encoder's tokens come on top.
  ModelSpec model = OneModule(ModuleRole::kEncoder, {StepVideoLatents()});
  ModuleSpec images;
  images.role = ModuleRole::kEncoder;
  images.token_rules = {DipImages()};
  ModuleSpec transformer;
  transformer.token_rules = {StepVideoLatents()};
  model.modules.push_back(images);
  model.modules.push_back(transformer);
  model.edges = {{.from = ModuleId(0), .to = ModuleId(2)},
                 {.from = ModuleId(1), .to = ModuleId(2)}};
  const auto work = SampleWork(
      model, {.text_tokens = 50,
              .images = {{728, 728}},
              .videos = {{.frames = 204, .width = 992, .height = 544}}});
  EXPECT_EQ(work[ModuleId(0)].tokens, 75'888);
  EXPECT_EQ(work[ModuleId(2)].tokens, 75'888 + 169);
}

TEST(TokenCountTest, AbsurdSizesNeitherOverflowNorGoNegative) {
  constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const bool negative : {false, true}) {
    SampleMetadata sample;
    sample.text_tokens = negative ? std::numeric_limits<int64_t>::min()
                                  : std::numeric_limits<int64_t>::max();
    const int32_t side = negative ? std::numeric_limits<int32_t>::min() : kHuge;
    sample.images = {{side, side}, {1, kHuge}, {kHuge, 1}};
    sample.videos = {{side, side, side, negative ? -infinity : infinity},
                     {1, 1, 1, std::nan("")}};
    sample.audio_seconds = {negative ? -1e300 : 1e300, std::nan("")};
    for (TokenRule rule :
         {DipImages(), QwenImages(), QwenVideo(), InternVlImages(),
          Step3Images(), StepVideoLatents(), Audio(50, 25, 30),
          TokenRule{.kind = TokenRuleKind::kText}}) {
      for (const Modality modality : {Modality::kText, Modality::kImage,
                                      Modality::kVideo, Modality::kAudio}) {
        rule.modality = modality;
        const WorkShape work = WorkOf(rule, sample);
        EXPECT_GE(work.tokens, 0);
        EXPECT_GE(work.output_tokens, 0);
        EXPECT_LT(work.tokens, int64_t{1} << 43);
        EXPECT_GE(work.squared_tokens, 0);
        EXPECT_TRUE(std::isfinite(work.squared_tokens));
      }
    }
    const auto chain = SampleWork(Chain(), sample);
    EXPECT_GE(chain[ModuleId(2)].tokens, 0);
    EXPECT_TRUE(std::isfinite(chain[ModuleId(3)].context_pairs));
  }
}

TEST(TokenCountTest, InstancesAddUpToTheSample) {
  const ModelSpec model = Chain();
  const SampleMetadata sample{.text_tokens = 9,
                              .images = {{100, 200}, {300, 100}, {64, 64}}};
  IdVector<ModuleId, std::vector<WorkShape>> instances(model.modules.size());
  AppendInstances(model, {.text_tokens = 1, .images = {{32, 32}}}, &instances);
  const auto before = instances;
  AppendInstances(model, sample, &instances);
  const auto work = SampleWork(model, sample);
  for (const ModuleId m : model.modules.ids()) {
    WorkShape sum;
    for (size_t i = before[m].size(); i < instances[m].size(); ++i) {
      EXPECT_EQ(instances[m][i].instances, 1);
      sum += instances[m][i];
    }
    EXPECT_EQ(sum, work[m]);
  }
}

}  // namespace
}  // namespace pipeloom::partition
