#include "partition/batching/batch_split.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/numeric.h"
#include "base/status_macros.h"
#include "emulator/cluster/meeting_replicas.h"
#include "partition/batching/load_meter.h"
#include "partition/batching/shape_buckets.h"
#include "partition/batching/token_count.h"

namespace pipeloom::partition {
namespace {

constexpr int64_t kMaxPieces = 100'000;

// An image, clip or recording of a sample; they are counted in that order.
struct Item {
  const SampleMetadata* sample = nullptr;
  size_t index = 0;
  void AddTo(SampleMetadata* piece) const {
    size_t i = index;
    if (i < sample->images.size()) {
      piece->images.push_back(sample->images[i]);
      return;
    }
    i -= sample->images.size();
    if (i < sample->videos.size()) {
      piece->videos.push_back(sample->videos[i]);
      return;
    }
    piece->audio_seconds.push_back(
        sample->audio_seconds[i - sample->videos.size()]);
  }
};

// Returns pieces that fit, in order; an item that fits in none is a piece of
// its own.
absl::StatusOr<std::vector<SampleMetadata>> CutSample(
    const LoadMeter& meter, const JobSpec& job, const SampleMetadata& sample) {
  const auto num_items =
      static_cast<int64_t>(sample.images.size() + sample.videos.size() +
                           sample.audio_seconds.size());
  // Text that counts, as a rule may cap it.
  const int64_t limit = job.training.microbatch_tokens;
  const int64_t token_load = meter.Of({.text_tokens = 1}).tokens;
  int64_t text = std::max<int64_t>(sample.text_tokens, 0);
  if (token_load > 0) {
    text = std::min(text, meter.Of({.text_tokens = text}).tokens / token_load);
  }
  if (token_load > 0 && text / limit > kMaxPieces) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "it has %d text tokens; microbatches of %d tokens would cut it to more "
        "than %d pieces",
        text, limit, kMaxPieces));
  }
  std::vector<SampleMetadata> pieces;
  SampleMetadata open;
  Load load;
  const auto close = [&] {
    if (open == SampleMetadata{}) return;
    pieces.push_back(std::exchange(open, {}));
    load = {};
  };
  const auto add_text = [&](int64_t tokens) {
    while (tokens > 0) {
      const int64_t space =
          token_load > 0 ? (limit - load.tokens) / token_load : tokens;
      const int64_t taken = std::min(tokens, space);
      if (taken <= 0) {
        if (open == SampleMetadata{}) {  // Not a single token fits.
          open.text_tokens = tokens;
          close();
          return;
        }
        close();
        continue;
      }
      open.text_tokens += taken;
      load.tokens += taken * token_load;
      tokens -= taken;
    }
  };
  // Item i is followed by its share of the text.
  const auto text_until = [&](int64_t items) {
    const int64_t each = text / num_items;
    return each * items + std::min(items, text % num_items);
  };
  if (num_items == 0) add_text(text);
  for (int64_t i = 0; i < num_items; ++i) {
    const Item item{&sample, static_cast<size_t>(i)};
    SampleMetadata alone;
    item.AddTo(&alone);
    const Load more = meter.Of(alone);
    Load sum = load;
    sum += more;
    sum.samples = 1;  // All of them are one.
    if (!meter.Fits(sum)) {
      close();
      sum = more;
    }
    item.AddTo(&open);
    load = sum;
    if (!meter.Fits(load)) close();
    add_text(text_until(i + 1) - text_until(i));
  }
  close();
  return pieces;
}

// A packer of samples into microbatches, replicas in turn.
class Packer {
 public:
  Packer(const LoadMeter& meter, int64_t most) : meter_(meter), most_(most) {}

  // Returns how many microbatches the step has if these join it.
  int64_t CountWith(const std::vector<Load>& loads) const {
    auto count = static_cast<int64_t>(microbatches_.size());
    Load open = open_;
    bool any = !microbatches_.empty();
    for (const Load& load : loads) {
      Load sum = open;
      sum += load;
      if (any && meter_.Fits(sum)) {
        open = sum;
      } else {
        ++count;
        open = load;
        any = true;
      }
    }
    return count;
  }
  bool HasRoomFor(const std::vector<Load>& loads) const {
    return CountWith(loads) <= most_;
  }
  int64_t size() const { return static_cast<int64_t>(microbatches_.size()); }

  void Add(SampleId sample, const Load& load) {
    Load sum = open_;
    sum += load;
    if (microbatches_.empty() || !meter_.Fits(sum)) {
      microbatches_.emplace_back();
      sum = load;
    }
    microbatches_.back().push_back(sample);
    open_ = sum;
  }

  // Makes `least` microbatches of a step that has fewer. Returns false if it
  // has fewer samples.
  bool Spread(int64_t least) {
    if (static_cast<int64_t>(microbatches_.size()) >= least) return true;
    std::vector<SampleId> all;
    for (const auto& one : microbatches_) {
      all.insert(all.end(), one.begin(), one.end());
    }
    const auto n = static_cast<int64_t>(all.size());
    if (n < least) return false;
    // Keeps the packing and halves the fullest until there are enough, so that
    // no limit is broken.
    while (static_cast<int64_t>(microbatches_.size()) < least) {
      auto fullest = std::max_element(
          microbatches_.begin(), microbatches_.end(),
          [](const auto& a, const auto& b) { return a.size() < b.size(); });
      const auto half = static_cast<std::ptrdiff_t>((fullest->size() + 1) / 2);
      std::vector<SampleId> rest(fullest->begin() + half, fullest->end());
      fullest->resize(static_cast<size_t>(half));
      microbatches_.insert(fullest + 1, std::move(rest));
    }
    return true;
  }

  std::vector<std::vector<std::vector<SampleId>>> Deal(int64_t replicas) && {
    std::vector<std::vector<std::vector<SampleId>>> packed(
        static_cast<size_t>(replicas));
    for (size_t i = 0; i < microbatches_.size(); ++i) {
      packed[i % packed.size()].push_back(std::move(microbatches_[i]));
    }
    return packed;
  }

 private:
  const LoadMeter& meter_;
  int64_t most_;
  Load open_{};  // Load of the last microbatch.
  std::vector<std::vector<SampleId>> microbatches_{};
};

}  // namespace

absl::StatusOr<PackedStep> PackStep(const JobSpec& job,
                                    const BatchMetadata& batch,
                                    int64_t first_sample) {
  const int64_t size = batch.samples.size();
  if (size == 0) {
    return absl::InvalidArgumentError(
        "batch: it is empty; it needs at least one sample a replica");
  }
  if (first_sample < 0 || first_sample >= size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("batch: no sample is left at %d; it has %d samples",
                        first_sample, size));
  }
  const LoadMeter meter(job);
  const int64_t replicas = job.parallel.dp;
  Packer packer(meter, replicas * job.training.microbatches);
  PackedStep step;
  struct Piece {
    SampleMetadata sample;
    SampleId of;
  };
  // (sample, load) in packing order; pieces get their ids at the end, when the
  // number of samples is known. Until then piece p is -2 - p.
  std::vector<Piece> pieces;
  std::vector<Load> loads;
  bool full = false;
  for (int64_t i = first_sample; i < size && !full; ++i) {
    const SampleId source(static_cast<int32_t>(i));
    const SampleMetadata& sample = batch.samples[source];
    bool work = false;
    const Load load = meter.Of(sample, &work);
    loads.clear();
    std::vector<SampleMetadata> cut;
    if (work && !meter.Fits(load)) {
      absl::StatusOr<std::vector<SampleMetadata>> result =
          CutSample(meter, job, sample);
      if (!result.ok()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "batch: sample %d: %s", i, result.status().message()));
      }
      cut = *std::move(result);
      for (const SampleMetadata& piece : cut) loads.push_back(meter.Of(piece));
    } else if (work) {
      loads.push_back(load);
    }
    if (!loads.empty() && !packer.HasRoomFor(loads) &&
        packer.size() >= replicas) {
      full = true;
      break;
    }
    const SampleId here = step.samples.samples.push_back(sample);
    step.piece_of.push_back(source);
    ++step.num_samples;
    if (cut.size() <= 1) {
      if (!loads.empty()) packer.Add(here, load);
      if (!cut.empty()) ++step.num_split_samples;
      continue;
    }
    ++step.num_split_samples;
    for (size_t p = 0; p < cut.size(); ++p) {
      packer.Add(SampleId(-2 - static_cast<int32_t>(pieces.size())), loads[p]);
      pieces.push_back({std::move(cut[p]), source});
    }
  }
  if (packer.size() == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "batch: none of its samples from %d on is work for any module of model "
        "\"%s\"",
        first_sample, job.model.name));
  }
  if (!packer.Spread(replicas)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("batch: %d samples are left at %d, which are too few "
                        "with work in them; "
                        "parallel.dp is %d and each replica needs at least one",
                        step.num_samples, first_sample, replicas));
  }
  if (emulator::ReplicasThatMeet(job) > 1) {
    // Each needs as many microbatches as the others; with too few samples for
    // that they are as they are.
    packer.Spread(CeilDiv(packer.size(), replicas) * replicas);
  }
  const int32_t first_piece = step.samples.samples.size();
  for (Piece& piece : pieces) {
    step.samples.samples.push_back(std::move(piece.sample));
    step.piece_of.push_back(piece.of);
  }
  step.packed = std::move(packer).Deal(replicas);
  step.totals.resize(job.model.modules.size());
  for (auto& replica : step.packed) {
    for (auto& microbatch : replica) {
      for (SampleId& id : microbatch) {
        if (id.value() < 0) id = SampleId(first_piece - 2 - id.value());
        const auto shapes = SampleWork(job.model, step.samples.samples[id]);
        for (const ModuleId m : shapes.ids()) {
          step.totals[m].tokens += shapes[m].tokens;
          step.totals[m].instances += shapes[m].instances;
        }
      }
    }
  }
  return step;
}

bool CutsMore(const PackedStep& step, const JobSpec& than) {
  // Keyed by sample of the input batch, which a step of several epochs may have
  // twice.
  std::map<SampleId, int64_t> pieces;
  for (const SampleId s : step.piece_of.ids()) {
    if (s.value() >= step.num_samples) ++pieces[step.piece_of[s]];
  }
  const LoadMeter meter(than);
  for (const SampleId s : step.piece_of.ids()) {
    if (s.value() >= step.num_samples) break;
    const auto found = pieces.find(step.piece_of[s]);
    if (found == pieces.end()) continue;
    const SampleMetadata& sample = step.samples.samples[s];
    int64_t wanted = 1;
    if (!meter.Fits(meter.Of(sample))) {
      const absl::StatusOr<std::vector<SampleMetadata>> cut =
          CutSample(meter, than, sample);
      // An error says that there would be more than kMaxPieces.
      wanted = cut.ok() ? std::max<int64_t>(1, std::ssize(*cut)) : kMaxPieces;
    }
    found->second -= wanted;
  }
  return std::any_of(pieces.begin(), pieces.end(),
                     [](const auto& more) { return more.second > 0; });
}

namespace {

// Returns into how many slices a module's instances in a microbatch are cut.
int64_t SlicesOf(int64_t instances, int64_t size) {
  return size > 0 ? CeilDiv(instances, size) : 1;
}

// Returns the least number of slices of the module in a microbatch of any
// replica that `replica` meets in its passes, which need as many in each;
// replicas that have nothing of it there do not count.
int64_t CommonSlices(const ModelSpec& model, const PackedStep& step,
                     int32_t replica, int32_t meet, MicrobatchId microbatch,
                     ModuleId module, int64_t size) {
  const auto first = static_cast<size_t>(replica / meet * meet);
  const size_t end =
      std::min(first + static_cast<size_t>(meet), step.packed.size());
  const auto k = static_cast<size_t>(microbatch.value());
  IdVector<ModuleId, std::vector<WorkShape>> instances(model.modules.size());
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t r = first; r < end; ++r) {
    if (k >= step.packed[r].size()) continue;
    for (std::vector<WorkShape>& of_module : instances) of_module.clear();
    for (const SampleId sample : step.packed[r][k]) {
      AppendInstances(model, step.samples.samples[sample], &instances);
    }
    const auto n = static_cast<int64_t>(instances[module].size());
    if (n > 0) least = std::min(least, SlicesOf(n, size));
  }
  return least;
}

}  // namespace

absl::StatusOr<Microbatches> SplitMicrobatches(const JobSpec& job,
                                               const PackedStep& step,
                                               int32_t replica,
                                               const Partition& partition) {
  absl::StatusOr<Microbatches> result =
      SplitUnpadded(job, step, replica, partition);
  if (result.ok()) PadToBuckets(job, &*result);
  return result;
}

absl::StatusOr<Microbatches> SplitUnpadded(const JobSpec& job,
                                           const PackedStep& step,
                                           int32_t replica,
                                           const Partition& partition) {
  const ModelSpec& model = job.model;
  if (replica < 0 || static_cast<size_t>(replica) >= step.packed.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("replica %d does not exist; the step has %d", replica,
                        step.packed.size()));
  }
  if (partition.sub_microbatch_instances.size() != model.modules.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "partition: sub_microbatch_instances has %d entries; the model has %d "
        "modules",
        partition.sub_microbatch_instances.size(), model.modules.size()));
  }
  const auto& packed = step.packed[static_cast<size_t>(replica)];
  Microbatches result;
  result.num_microbatches = static_cast<int32_t>(packed.size());
  result.num_samples = step.num_samples;
  result.num_split_samples = step.num_split_samples;
  const int32_t meet = emulator::ReplicasThatMeet(job);
  IdVector<ModuleId, std::vector<WorkShape>> instances(model.modules.size());
  for (const std::vector<SampleId>& samples : packed) {
    for (std::vector<WorkShape>& of_module : instances) of_module.clear();
    for (const SampleId sample : samples) {
      AppendInstances(model, step.samples.samples[sample], &instances);
    }
    const MicrobatchId microbatch = result.samples.push_back(samples);
    for (const ModuleId m : model.modules.ids()) {
      const std::vector<WorkShape>& all = instances[m];
      const auto n = static_cast<int64_t>(all.size());
      if (n == 0) continue;
      const int64_t size = partition.sub_microbatch_instances[m];
      int64_t slices = SlicesOf(n, size);
      if (slices > 1 && meet > 1 && emulator::MeetsInPasses(job, m)) {
        slices = CommonSlices(model, step, replica, meet, microbatch, m, size);
      }
      const int32_t copies = job.CopiesOf(m);
      int32_t index = 0;
      for (int64_t s = 0; s < slices; ++s) {
        const auto begin = all.begin() + n * s / slices;
        const auto end = all.begin() + n * (s + 1) / slices;
        WorkShape shape;
        for (auto i = begin; i != end; ++i) shape += *i;
        if (copies > 1) {
          const WorkShape share =
              LargestShare(std::vector<WorkShape>(begin, end), copies);
          shape.share_tokens = share.tokens;
          shape.share_squared = share.squared_tokens;
        }
        result.sub_microbatches.push_back({.module = m,
                                           .microbatch = microbatch,
                                           .index = index++,
                                           .shape = shape});
      }
    }
  }
  return result;
}

int64_t MostTasks(const Microbatches& microbatches,
                  const Partition& partition) {
  IdVector<ModuleId, int64_t> stages(partition.sub_microbatch_instances.size(),
                                     0);
  for (const Stage& stage : partition.stages) ++stages[stage.module];
  int64_t tasks = 0;
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    tasks += 3 * stages[sub.module];
  }
  return tasks;
}

}  // namespace pipeloom::partition
