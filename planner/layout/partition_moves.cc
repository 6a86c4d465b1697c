#include "planner/layout/partition_moves.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pipeloom::planner {
namespace {

using partition::ModuleRecipe;
using partition::PartitionRecipe;
using partition::RankMap;

constexpr int32_t kMaxSegments = 8;

std::string WithMoved(const std::string& name) {
  constexpr char kMoved[] = ", layers moved";
  const size_t at = name.find(kMoved);
  return absl::StrCat(name.substr(0, at), kMoved);
}

}  // namespace

std::vector<ModuleId> PartitionMoves::Heavy() const {
  std::vector<ModuleId> heavy;
  for (const ModuleId m : builder_.job().model.modules.ids()) {
    if (builder_.work(m).present()) heavy.push_back(m);
  }
  std::stable_sort(heavy.begin(), heavy.end(), [&](ModuleId a, ModuleId b) {
    return builder_.TimeOf(a) > builder_.TimeOf(b);
  });
  if (heavy.empty()) return heavy;
  const Duration least = builder_.TimeOf(heavy.front()) / 50;
  std::erase_if(heavy, [&](ModuleId m) { return builder_.TimeOf(m) < least; });
  return heavy;
}

PartitionMoves::Candidates PartitionMoves::Starts(
    const PartitionRecipe& rule) const {
  Candidates starts;
  const std::vector<ModuleId> heavy = Heavy();
  const int32_t pp = builder_.job().parallel.pp;
  PartitionRecipe level = rule;
  level.level_ranks = true;
  starts.push_back(Make(level));
  if (Independent()) {
    // The other models run against the largest one's direction: each fills the
    // ranks that wait for the other (RLHFuse's fused schedule). All have
    // equally many segments, or stages of about equal time.
    const double longest = ToSeconds(builder_.TimeOf(heavy.front()));
    for (const int32_t segments : {1, 2, 4, 5, 7}) {
      for (const RankMap map : {RankMap::kVee, RankMap::kLooped}) {
        for (const bool by_time : {false, true}) {
          PartitionRecipe r = level;
          for (const ModuleId m : heavy) {
            const double share =
                by_time ? ToSeconds(builder_.TimeOf(m)) / longest : 1;
            r.modules[m].segments =
                std::clamp(static_cast<int32_t>(segments * share + 0.5), 1,
                           MostSegments(m, r.modules[m]));
            r.modules[m].map = map;
            r.modules[m].reversed = m != heavy.front();
          }
          starts.push_back(Make(r));
        }
      }
    }
  }
  // Tries sizes for all modules that have any, with few segments and with more.
  for (const int32_t segments : {1, 2}) {
    for (const int64_t size : {int64_t{4}, int64_t{12}, int64_t{0}}) {
      PartitionRecipe r = level;
      for (const ModuleId m : heavy) {
        r.modules[m].segments =
            std::clamp(segments, 1, MostSegments(m, r.modules[m]));
        if (!builder_.SizeIsFixed(m) && rule.modules[m].sub_microbatch > 0) {
          r.modules[m].sub_microbatch =
              size < builder_.work(m).most_instances ? size : 0;
        }
      }
      starts.push_back(Make(r));
      if (segments == 2 && size == 4) {
        for (const ModuleId m : heavy) r.modules[m].map = RankMap::kVee;
        starts.push_back(Make(r));
      }
    }
  }
  // Tries all modules as one pipeline, going round the ranks once or more.
  for (const int32_t segments : {1, 2, 4}) {
    for (const RankMap map : {RankMap::kLooped, RankMap::kVee}) {
      PartitionRecipe r = rule;
      r.one_chain = true;
      r.modules[ModuleId(0)].segments = segments;
      r.modules[ModuleId(0)].map = map;
      for (const ModuleId m : r.modules.ids()) {
        if (!builder_.SizeIsFixed(m)) r.modules[m].sub_microbatch = 0;
      }
      starts.push_back(Make(r));
    }
  }
  if (heavy.size() >= 2 && pp >= 2) OwnRanks(rule, heavy, &starts);
  return starts;
}

// Puts the largest module and the rest on ranks of their own, in proportion to
// their time.
void PartitionMoves::OwnRanks(const PartitionRecipe& rule,
                              const std::vector<ModuleId>& heavy,
                              Candidates* starts) const {
  const int32_t pp = builder_.job().parallel.pp;
  Duration total{};
  for (const ModuleId m : heavy) total += builder_.TimeOf(m);
  const double share =
      ToSeconds(builder_.TimeOf(heavy.front())) / ToSeconds(total);
  const auto fair = static_cast<int32_t>(share * pp + 0.5);
  for (const int32_t shift : {0, -1, 1}) {
    const int32_t mine = fair + shift;
    if (mine < 1 || mine >= pp) continue;
    PartitionRecipe r = rule;
    // The others follow the largest, or go before it.
    const bool leads = heavy.front() == ModuleId(0);
    for (const ModuleId m : r.modules.ids()) {
      ModuleRecipe& module = r.modules[m];
      module.segments = 1;
      const bool largest = m == heavy.front();
      module.num_ranks = largest ? mine : pp - mine;
      if (largest) {
        module.first_rank = leads ? 0 : pp - mine;
      } else {
        module.first_rank = leads ? mine : 0;
      }
    }
    starts->push_back(Make(r));
  }
}

bool PartitionMoves::Independent() const {
  const ModelSpec& model = builder_.job().model;
  return model.modules.size() > 1 && model.edges.empty();
}

int32_t PartitionMoves::MostSegments(ModuleId m,
                                     const ModuleRecipe& recipe) const {
  const int32_t ranks =
      recipe.num_ranks > 0 ? recipe.num_ranks : builder_.job().parallel.pp;
  return std::clamp(builder_.NumUnits(m) / ranks, 1, kMaxSegments);
}

PartitionMoves::Candidates PartitionMoves::Neighbours(
    const PartitionRecipe& from) const {
  Candidates result;
  PartitionRecipe r = from;
  r.level_ranks = !r.level_ranks;
  result.push_back(Make(r));
  for (const ModuleId m : Heavy()) {
    const ModuleRecipe& now = from.modules[m];
    const auto with = [&](auto change) {
      PartitionRecipe changed = from;
      change(&changed.modules[m]);
      result.push_back(Make(changed));
    };
    if (!builder_.SizeIsFixed(m)) {
      for (const int64_t size : NearbySizes(m, now.sub_microbatch)) {
        with([&](ModuleRecipe* c) { c->sub_microbatch = size; });
      }
    }
    if (from.one_chain && m != ModuleId(0)) continue;
    for (const int32_t more : {-1, 1, 2}) {
      const int32_t segments = now.segments + more;
      if (segments < 1 || segments > MostSegments(m, now)) continue;
      with([&](ModuleRecipe* c) { c->segments = segments; });
    }
    if (Independent()) {
      with([&](ModuleRecipe* c) { c->reversed = !c->reversed; });
    }
    if (now.segments > 1) {
      with([&](ModuleRecipe* c) {
        c->map = c->map == RankMap::kVee ? RankMap::kLooped : RankMap::kVee;
      });
    }
  }
  return result;
}

// Returns sizes two steps down and up; 0, the whole microbatch, is beyond the
// largest.
std::vector<int64_t> PartitionMoves::NearbySizes(ModuleId m,
                                                 int64_t now) const {
  std::vector<int64_t> all;
  for (int64_t size = 1; size < builder_.work(m).most_instances;
       size = partition::NextSize(size)) {
    all.push_back(size);
  }
  size_t at = all.size();
  for (size_t i = 0; i < all.size() && now > 0; ++i) {
    if (all[i] >= now) {
      at = i;
      break;
    }
  }
  all.push_back(0);
  std::vector<int64_t> near;
  for (const int32_t shift : {-1, 1, -2, 2}) {
    const int64_t i = static_cast<int64_t>(at) + shift;
    if (i < 0 || i >= static_cast<int64_t>(all.size())) continue;
    near.push_back(all[static_cast<size_t>(i)]);
  }
  return near;
}

std::optional<PartitionCandidate> PartitionMoves::Make(
    const PartitionRecipe& recipe) const {
  absl::StatusOr<Partition> built = builder_.Build(recipe);
  if (!built.ok()) return std::nullopt;
  const std::string name = recipe.ToString(builder_.job().model);
  return PartitionCandidate{.partition = *std::move(built),
                            .recipe = recipe,
                            .name = name,
                            .origin = name};
}

PartitionMoves::Candidates PartitionMoves::Moved(
    const PartitionCandidate& from) const {
  Candidates moved;
  for (const StageId s : from.partition.stages.ids()) {
    for (const bool back : {false, true}) {
      auto partition = builder_.MoveUnit(from.partition, s, back);
      if (!partition.has_value()) continue;
      moved.push_back(PartitionCandidate{.partition = *std::move(partition),
                                         .name = WithMoved(from.name),
                                         .origin = from.origin});
    }
  }
  return moved;
}

}  // namespace pipeloom::planner
