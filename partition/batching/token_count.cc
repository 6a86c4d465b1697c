#include "partition/batching/token_count.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "base/check.h"

namespace pipeloom::partition {
namespace {

// Counts are computed in doubles, which are exact far beyond the cap.
constexpr double kMaxTokens = 0x1p40;
constexpr double kLongestSeconds = 86'400;
constexpr double kContainerFps = 30;
// Lets 0.1 s x 10/s be one token although the product may be 0.999...
constexpr double kRounding = 1e-6;

struct Size {
  double width = 0;
  double height = 0;
};

double KnownSeconds(double seconds) {
  return seconds > 0 ? std::min(seconds, kLongestSeconds) : 0;  // NaN: 0.
}

int64_t Clamped(double count) {
  const double rounded = count + kRounding;
  if (!(rounded > 0)) return 0;
  return static_cast<int64_t>(std::min(rounded, kMaxTokens));
}

// Adds `count` sequences of `length` tokens.
void AddSequences(double count, double length, WorkShape* shape) {
  shape->tokens = Clamped(static_cast<double>(shape->tokens) + count * length);
  shape->squared_tokens += count * length * length;
  shape->sequences += count;
  shape->longest = std::max(shape->longest, Clamped(length));
}

void AddOutput(double tokens, WorkShape* shape) {
  shape->output_tokens =
      Clamped(static_cast<double>(shape->output_tokens) + tokens);
}

double Patches(int64_t side, int64_t patch) {
  const double n = std::floor(static_cast<double>(side) /
                              static_cast<double>(std::max<int64_t>(patch, 1)));
  return std::max(n * n, 1.0);
}

Size SizeOrDefault(const TokenRule& rule, double width, double height) {
  if (width > 0 && height > 0) return {width, height};
  if (rule.default_width > 0 && rule.default_height > 0) {
    return {static_cast<double>(rule.default_width),
            static_cast<double>(rule.default_height)};
  }
  if (rule.side > 0) {
    return {static_cast<double>(rule.side), static_cast<double>(rule.side)};
  }
  return {};
}

// Returns the frames that the module sees of a clip; at least 1.
double SampledFrames(const TokenRule& rule, const VideoClip& clip) {
  const double known = std::max(0.0, static_cast<double>(clip.frames));
  const double seconds = ClipSeconds(clip);
  const double used =
      rule.max_seconds > 0 ? std::min(seconds, rule.max_seconds) : seconds;
  double frames = 0;
  if (rule.fps > 0) {
    frames = used * rule.fps;
  } else if (known > 0) {
    frames = known * (seconds > 0 ? used / seconds : 1);
  } else {
    frames = used * kContainerFps;
  }
  frames = std::floor(frames + kRounding);
  frames = std::max(frames, static_cast<double>(rule.min_frames));
  if (rule.max_frames > 0) {
    frames = std::min(frames, static_cast<double>(rule.max_frames));
  }
  if (known > 0) frames = std::min(frames, known);
  return std::max(frames, 1.0);
}

// Returns the output tokens of one grid: both sides rounded to whole tokens
// (half to even), then scaled by the square root of the excess, down with floor
// or up with ceil. A side ratio over 200 is cut to 200. Source: smart_resize of
// the Qwen2-VL image processor, in its order of operations.
double ResizedTokens(const TokenRule& rule, Size size, double least,
                     double most) {
  constexpr double kWidestAspect = 200;
  const auto factor =
      static_cast<double>(std::max<int64_t>(rule.patch * rule.merge, 1));
  least = std::max(least, 1.0);
  if (size.width <= 0) return std::ceil(least);
  const double shorter = std::min(size.width, size.height);
  const double longer =
      std::min(std::max(size.width, size.height), shorter * kWidestAspect);
  // A side below half a token is 0, which is less than `least`.
  double a = std::nearbyint(longer / factor);
  double b = std::nearbyint(shorter / factor);
  const double pixels = longer * shorter;
  if (most > 0 && a * b > most) {
    const double scale = std::sqrt(pixels / (most * factor * factor));
    b = std::max(1.0, std::floor(shorter / scale / factor));
    a = std::max(1.0, std::floor(longer / scale / factor));
    if (a * b > most) a = std::max(1.0, std::floor(most / b));
  } else if (a * b < least) {
    const double scale = std::sqrt(least * factor * factor / pixels);
    a = std::ceil(longer * scale / factor);
    b = std::ceil(shorter * scale / factor);
  }
  return a * b;
}

// Returns the tiles of one image: those of the grid whose aspect ratio is
// nearest, of equally near ones a larger grid if the image fills over half of
// it; and a thumbnail if the grid has more than one tile. Source:
// dynamic_preprocess of InternVL.
double Tiles(const TokenRule& rule, Size size) {
  // More tiles than any processor uses; bounds the search.
  const auto most = static_cast<int>(
      std::clamp<int64_t>(rule.max_tiles, int64_t{1}, int64_t{1024}));
  if (size.width <= 0 || most == 1) return 1;
  const double aspect = size.width / size.height;
  const double area = size.width * size.height;
  const double tile =
      static_cast<double>(rule.side) * static_cast<double>(rule.side);
  double nearest = INFINITY;
  int best = 1;
  for (int tiles = 1; tiles <= most; ++tiles) {
    for (int columns = 1; columns <= tiles; ++columns) {
      if (tiles % columns != 0) continue;
      const int rows = tiles / columns;
      const double off = std::abs(aspect - static_cast<double>(columns) / rows);
      if (off < nearest) {
        nearest = off;
        best = tiles;
      } else if (off == nearest && area > 0.5 * tile * tiles) {
        best = tiles;
      }
    }
  }
  return best == 1 ? 1 : best + 1;
}

// Divides as Python's // does, which is not always the floor of the quotient.
double FloorDivide(double a, double b) {
  const double quotient = (a - std::fmod(a, b)) / b;
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

// The tiles of one image in a grid, and its output tokens without those of the
// view of the whole.
struct AnyResolution {
  double tiles = 0;
  double tokens = 0;
};

// Returns the grid that keeps most pixels of the image, of equal ones the
// smallest, and its tokens. Source: select_best_resolution and
// LlavaOnevisionProcessor of transformers.
AnyResolution AnyResolutionOf(const TokenRule& rule, Size size, double row) {
  const auto most = static_cast<int>(
      std::clamp<int64_t>(rule.max_tiles, int64_t{1}, int64_t{64}));
  const auto side = static_cast<double>(rule.side);
  double used = 0;
  double wasted = INFINITY;
  double columns = 1;
  double rows = 1;
  for (int r = 1; r <= most; ++r) {
    for (int c = 1; c <= most; ++c) {
      const double scale =
          std::min(c * side / size.width, r * side / size.height);
      const double usable = std::min(
          std::floor(size.width * scale) * std::floor(size.height * scale),
          size.width * size.height);
      const double rest = c * r * side * side - usable;
      if (usable > used || (usable == used && rest < wasted)) {
        used = usable;
        wasted = rest;
        columns = c;
        rows = r;
      }
    }
  }
  double width = row * columns;
  double height = row * rows;
  // Removes the margins, the same number of rows or columns at both sides.
  const auto cut = [](double whole, double kept) {
    kept = std::floor(std::nearbyint(kept * 1e7) / 1e7);
    return whole - 2 * std::floor((whole - kept) / 2);
  };
  if (size.width / size.height > width / height) {
    height = cut(height, size.height * (width / size.width));
  } else {
    width = cut(width, size.width * (height / size.height));
  }
  const double ratio =
      std::sqrt(height * width / static_cast<double>(rule.max_tokens));
  if (ratio > 1.1) {
    height = FloorDivide(height, ratio);
    width = FloorDivide(width, ratio);
  }
  return {.tiles = columns * rows, .tokens = height * width + height};
}

struct Crops {
  double count = 0;
  double rows = 0;  // Row breaks between crops.
};

// Returns Step-3's crops of one image, with the constants of its processor:
// sides up to 3024 px; no crops if the long side is within the global view and
// at most 1.5 times the short one; beyond a ratio of 4 (there, of 1.5) the
// window is the short side. Sides are rounded to whole windows, up if more than
// 0.2 of a window is left. Source: vLLM, ImagePatcher of step3_vl.py.
Crops CropsOf(const TokenRule& rule, Size size) {
  if (size.width <= 0 || rule.crop_side <= 0) return {};
  double width = size.width;
  double height = size.height;
  if (std::min(width, height) < 32 &&
      std::max(width, height) > 4 * std::min(width, height)) {
    width = height = std::max(width, height);
  }
  const double longest = std::max(width, height);
  if (longest > 3024) {
    width = std::max(1.0, std::floor(width * (3024 / longest)));
    height = std::max(1.0, std::floor(height * (3024 / longest)));
  }
  const double longer = std::max(width, height);
  const double shorter = std::min(width, height);
  auto window = static_cast<double>(rule.crop_side);
  if (longer <= static_cast<double>(rule.side)) {
    if (longer <= 1.5 * shorter) return {};
    window = shorter;
  } else if (longer > 4 * shorter) {
    window = std::min(shorter, window);
  }
  const auto windows = [&](double side) {
    const double ratio = side / window;
    if (ratio < 1) return 1.0;
    const double whole = std::floor(ratio);
    return ratio - whole > 0.2 ? whole + 1 : whole;
  };
  const double columns = windows(width);
  const double rows = windows(height);
  return {.count = columns * rows, .rows = rows - 1};
}

// Adds `frames` pictures of one size (1 for an image) to an instance.
void AddPictures(const TokenRule& rule, Size size, double frames,
                 WorkShape* shape) {
  const double merged = static_cast<double>(rule.merge * rule.merge);
  switch (rule.kind) {
    case TokenRuleKind::kFixedSquare: {
      const double in = Patches(rule.side, rule.patch);
      AddSequences(frames, in, shape);
      AddOutput(frames * std::floor(in / merged), shape);
      break;
    }
    case TokenRuleKind::kTiles: {
      const double tiles = frames * Tiles(rule, size);
      AddSequences(tiles, static_cast<double>(rule.tokens_per_tile), shape);
      AddOutput(tiles * static_cast<double>(rule.output_tokens_per_tile) +
                    frames * static_cast<double>(rule.extra_tokens),
                shape);
      break;
    }
    case TokenRuleKind::kGlobalAndCrops: {
      const Crops crops = CropsOf(rule, size);
      const auto extra = static_cast<double>(rule.extra_tokens);
      AddSequences(frames, Patches(rule.side, rule.patch), shape);
      if (crops.count > 0) {
        AddSequences(frames * crops.count, Patches(rule.crop_side, rule.patch),
                     shape);
      }
      // If views are marked, rows of crops are too, with one token each.
      AddOutput(
          frames *
              (static_cast<double>(rule.output_tokens_per_tile) + extra +
               (extra > 0 ? crops.rows : 0) +
               crops.count *
                   (static_cast<double>(rule.output_tokens_per_crop) + extra)),
          shape);
      break;
    }
    case TokenRuleKind::kAnyResolution: {
      const double view = Patches(rule.side, rule.patch);
      if (size.width <= 0 || frames > 1) {
        AddSequences(frames, view, shape);
        AddOutput(frames * (view + 1), shape);
        break;
      }
      const AnyResolution grid = AnyResolutionOf(rule, size, std::sqrt(view));
      AddSequences(1 + grid.tiles, view, shape);
      AddOutput(view + grid.tokens, shape);
      break;
    }
    case TokenRuleKind::kLatent: {
      const auto stride =
          static_cast<double>(std::max<int64_t>(rule.spatial_stride, 1));
      const double grid = std::max(1.0, std::floor(size.width / stride)) *
                          std::max(1.0, std::floor(size.height / stride));
      const double latents = std::ceil(
          frames * static_cast<double>(rule.latents_per_group) /
          static_cast<double>(std::max<int64_t>(rule.frame_group, 1)));
      AddSequences(1, latents * grid + static_cast<double>(rule.extra_tokens),
                   shape);
      AddOutput(latents * grid, shape);
      break;
    }
    case TokenRuleKind::kDynamicResolution:
    case TokenRuleKind::kAudioRate:
    case TokenRuleKind::kText:
      PIPELOOM_CHECK(false);  // Handled by the callers.
  }
}

WorkShape ImageWork(const TokenRule& rule, const ImageSize& image) {
  WorkShape shape{.instances = 1};
  const Size size = SizeOrDefault(rule, image.width, image.height);
  if (rule.kind == TokenRuleKind::kDynamicResolution) {
    const double out =
        ResizedTokens(rule, size, static_cast<double>(rule.min_tokens),
                      static_cast<double>(rule.max_tokens));
    AddSequences(1, out * static_cast<double>(rule.merge * rule.merge), &shape);
    AddOutput(out, &shape);
  } else {
    AddPictures(rule, size, 1, &shape);
  }
  return shape;
}

// Returns the work of an image of which only one view is taken.
WorkShape ViewWork(const TokenRule& rule) {
  WorkShape shape{.instances = 1};
  AddPictures(rule, {}, 1, &shape);
  return shape;
}

WorkShape ClipWork(const TokenRule& rule, const VideoClip& clip) {
  WorkShape shape{.instances = 1};
  const Size size = SizeOrDefault(rule, clip.width, clip.height);
  const double frames = SampledFrames(rule, clip);
  if (rule.kind != TokenRuleKind::kDynamicResolution) {
    AddPictures(rule, size, frames, &shape);
    return shape;
  }
  // Pairs of frames share a grid. Source: fetch_video of qwen-vl-utils, which
  // also lets a grid exceed its share of the total by 5 % of the least grid.
  const double pairs = std::max(1.0, std::floor(frames / 2));
  const auto least = static_cast<double>(rule.min_tokens);
  auto most = static_cast<double>(rule.max_tokens);
  if (rule.max_total_tokens > 0) {
    const double share = static_cast<double>(rule.max_total_tokens) / pairs;
    most = std::max(most > 0 ? std::min(most, share) : share, least * 1.05);
  }
  const double out = ResizedTokens(rule, size, least, most);
  AddSequences(pairs, out * static_cast<double>(rule.merge * rule.merge),
               &shape);
  AddOutput(pairs * out, &shape);
  return shape;
}

// Appends one instance per chunk; the last one may be shorter.
void AppendAudio(const TokenRule& rule, double given,
                 std::vector<WorkShape>* out) {
  double seconds = KnownSeconds(given);
  if (rule.max_seconds > 0) seconds = std::min(seconds, rule.max_seconds);
  if (seconds <= 0) return;
  const double chunk =
      rule.chunk_seconds > 0 ? std::max(rule.chunk_seconds, 0.1) : seconds;
  const auto chunks = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(seconds / chunk - kRounding)));
  const auto until = [&](int64_t index, double rate) {
    const double end = std::min(seconds, chunk * static_cast<double>(index));
    return Clamped(std::ceil(end * rate - kRounding));
  };
  for (int64_t i = 0; i < chunks; ++i) {
    WorkShape shape{.instances = 1};
    AddSequences(1,
                 static_cast<double>(until(i + 1, rule.tokens_per_second) -
                                     until(i, rule.tokens_per_second)),
                 &shape);
    AddOutput(static_cast<double>(until(i + 1, rule.output_tokens_per_second) -
                                  until(i, rule.output_tokens_per_second)),
              &shape);
    out->push_back(shape);
  }
}

void AppendText(const TokenRule& rule, int64_t tokens,
                std::vector<WorkShape>* out) {
  if (rule.max_tokens > 0) tokens = std::min(tokens, rule.max_tokens);
  if (tokens <= 0) return;
  WorkShape shape{.instances = 1};
  const double length = std::min(static_cast<double>(tokens), kMaxTokens);
  AddSequences(1, length, &shape);
  AddOutput(length, &shape);
  out->push_back(shape);
}

void AppendByRule(const TokenRule& rule, const SampleMetadata& sample,
                  std::vector<WorkShape>* out) {
  if (rule.kind == TokenRuleKind::kText) {
    AppendText(rule, sample.text_tokens, out);
    return;
  }
  if (rule.kind == TokenRuleKind::kAudioRate) {
    if (rule.modality == Modality::kAudio) {
      for (const double s : sample.audio_seconds) AppendAudio(rule, s, out);
    } else if (rule.modality == Modality::kVideo) {
      for (const VideoClip& clip : sample.videos) {
        AppendAudio(rule, ClipSeconds(clip), out);
      }
    }
    return;
  }
  if (rule.modality == Modality::kImage) {
    if (rule.kind == TokenRuleKind::kFixedSquare && !sample.images.empty()) {
      // All images are alike.
      out->insert(out->end(), sample.images.size(),
                  ImageWork(rule, sample.images.front()));
      return;
    }
    const bool only_views =
        rule.kind == TokenRuleKind::kAnyResolution && sample.images.size() > 1;
    for (const ImageSize& image : sample.images) {
      out->push_back(only_views ? ViewWork(rule) : ImageWork(rule, image));
    }
  } else if (rule.modality == Modality::kVideo) {
    for (const VideoClip& clip : sample.videos) {
      out->push_back(ClipWork(rule, clip));
    }
  }
}

// Returns whether the rules count the part of a sample that `module` stands
// for: what its own rules count or, without any, those of the modules that feed
// it.
bool AlreadyCounts(const std::vector<TokenRule>& rules, const ModelSpec& model,
                   ModuleId module) {
  const std::vector<TokenRule>& others = model.modules[module].token_rules;
  if (others.empty()) {
    return std::any_of(model.edges.begin(), model.edges.end(),
                       [&](const ModuleEdge& edge) {
                         return edge.to == module && !edge.as_context &&
                                AlreadyCounts(rules, model, edge.from);
                       });
  }
  for (const TokenRule& other : others) {
    for (const TokenRule& rule : rules) {
      if (rule.modality == other.modality) return true;
    }
  }
  return false;
}

}  // namespace

double ClipSeconds(const VideoClip& clip) {
  const double seconds = KnownSeconds(clip.seconds);
  if (seconds > 0) return seconds;
  return KnownSeconds(static_cast<double>(clip.frames) / kContainerFps);
}

void AppendInstances(const ModelSpec& model, const SampleMetadata& sample,
                     IdVector<ModuleId, std::vector<WorkShape>>* instances) {
  PIPELOOM_CHECK(instances->size() == model.modules.size());
  // The part of each module's vector that is this sample's, and the tokens that
  // it hands on.
  struct Part {
    size_t begin = 0;
    double handed_on = 0;
  };
  absl::InlinedVector<Part, 8> all_parts(
      static_cast<size_t>(model.modules.size()));
  Part* const parts = all_parts.data();
  const auto part = [&](ModuleId m) -> Part& {
    return parts[static_cast<size_t>(m.value())];
  };
  for (const ModuleId m : model.modules.ids()) {
    const ModuleSpec& module = model.modules[m];
    std::vector<WorkShape>& own = (*instances)[m];
    const size_t begin = own.size();
    part(m).begin = begin;
    double fed = 0;
    double context = 0;
    for (const ModuleEdge& edge : model.edges) {
      if (edge.to != m) continue;
      if (edge.as_context) {
        context += part(edge.from).handed_on;
      } else if (module.token_rules.empty() ||
                 !AlreadyCounts(module.token_rules, model, edge.from)) {
        fed += part(edge.from).handed_on;
      }
    }
    for (const TokenRule& rule : module.token_rules) {
      AppendByRule(rule, sample, &own);
    }
    if (module.role == ModuleRole::kBackbone) {
      // Everything is one sequence.
      double tokens = fed;
      for (size_t i = begin; i < own.size(); ++i) {
        tokens += static_cast<double>(own[i].output_tokens);
      }
      own.resize(begin);
      if (module.token_rules.empty()) {
        tokens += std::max(0.0, static_cast<double>(sample.text_tokens));
      }
      tokens = std::min(tokens, kMaxTokens);
      if (tokens > 0) {
        WorkShape shape{.instances = 1};
        AddSequences(1, tokens, &shape);
        AddOutput(tokens, &shape);
        own.push_back(shape);
      }
    } else if (module.role == ModuleRole::kEncoder &&
               module.token_rules.empty()) {
      for (const ModuleEdge& edge : model.edges) {
        if (edge.to != m || edge.as_context) continue;
        const std::vector<WorkShape>& from = (*instances)[edge.from];
        for (size_t i = part(edge.from).begin; i < from.size(); ++i) {
          WorkShape shape{.instances = from[i].instances};
          AddSequences(1, static_cast<double>(from[i].output_tokens), &shape);
          AddOutput(static_cast<double>(from[i].output_tokens), &shape);
          own.push_back(shape);
        }
      }
    }
    double handed_on = 0;
    for (size_t i = begin; i < own.size(); ++i) {
      handed_on += static_cast<double>(own[i].output_tokens);
      if (context == 0) continue;
      own[i].context_tokens = Clamped(context);
      own[i].context_pairs = static_cast<double>(own[i].tokens) * context;
    }
    part(m).handed_on = handed_on;
  }
}

IdVector<ModuleId, WorkShape> SampleWork(const ModelSpec& model,
                                         const SampleMetadata& sample) {
  IdVector<ModuleId, std::vector<WorkShape>> instances(model.modules.size());
  AppendInstances(model, sample, &instances);
  IdVector<ModuleId, WorkShape> work(model.modules.size());
  for (const ModuleId m : work.ids()) {
    for (const WorkShape& shape : instances[m]) work[m] += shape;
  }
  return work;
}

}  // namespace pipeloom::partition
