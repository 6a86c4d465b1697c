#include "service/jobs/step_batch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/numeric.h"
#include "base/status_macros.h"
#include "partition/batching/balance_step.h"
#include "partition/batching/token_count.h"

namespace pipeloom::service {
namespace {

absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(prefix, status.message()));
}

Fingerprint FingerprintOf(const BatchMetadata& batch) {
  FingerprintBuilder print;
  print.Add(batch.samples.size());
  for (const SampleMetadata& s : batch.samples) {
    print.Add(s.text_tokens).Add(s.images.size()).Add(s.videos.size());
    for (const ImageSize& i : s.images) print.Add(i.width).Add(i.height);
    for (const VideoClip& v : s.videos) {
      print.Add(v.frames).Add(v.width).Add(v.height).Add(v.seconds);
    }
    print.Add(s.audio_seconds.size());
    for (const double seconds : s.audio_seconds) print.Add(seconds);
  }
  return print.Build();
}

// Returns StepBatch::unused_media.
std::string NoteOfUnusedMedia(const ModelSpec& model,
                              const BatchMetadata& batch, int64_t step) {
  struct Medium {
    const char* name;
    int64_t samples = 0;  // That have some.
    bool is_used = false;
  };
  Medium media[] = {{"images"}, {"videos"}, {"audio"}};
  const auto look = [&model](Medium* medium, const SampleMetadata& alone) {
    ++medium->samples;
    if (medium->is_used) return;
    const auto work = partition::SampleWork(model, alone);
    for (const ModuleId m : work.ids()) {
      medium->is_used = medium->is_used || !work[m].empty();
    }
  };
  for (const SampleMetadata& sample : batch.samples) {
    if (!sample.images.empty()) look(&media[0], {.images = sample.images});
    if (!sample.videos.empty()) look(&media[1], {.videos = sample.videos});
    if (!sample.audio_seconds.empty()) {
      look(&media[2], {.audio_seconds = sample.audio_seconds});
    }
  }
  std::vector<std::string> unused;
  for (const Medium& medium : media) {
    if (medium.samples > 0 && !medium.is_used) {
      unused.push_back(absl::StrFormat(
          "%d %s %s", medium.samples,
          medium.samples == 1 ? "sample has" : "samples have", medium.name));
    }
  }
  if (unused.empty()) return "";
  return absl::StrFormat(
      "%s in step %d, which no module of model %s takes: they are planned "
      "without",
      absl::StrJoin(unused, " and "), step, model.name);
}

// Packs the batch into the microbatches that the trainer chose.
absl::StatusOr<partition::PackedStep> PackAsGiven(
    const ModelSpec& model, const v1::SubmitBatchRequest& request,
    BatchMetadata batch) {
  if (request.microbatch_of_size() != batch.samples.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "microbatch_of has %d entries; it must have one for each of %d samples",
        request.microbatch_of_size(), batch.samples.size()));
  }
  partition::PackedStep packed;
  auto& microbatches = packed.packed.emplace_back();
  for (int i = 0; i < request.microbatch_of_size(); ++i) {
    const int32_t m = request.microbatch_of(i);
    if (m < 0 || m >= batch.samples.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("microbatch_of[%d] is %d; it must be in [0, %d)", i,
                          m, batch.samples.size()));
    }
    const auto needed = static_cast<size_t>(m) + 1;
    if (microbatches.size() < needed) microbatches.resize(needed);
    microbatches[needed - 1].push_back(SampleId(i));
  }
  for (size_t m = 0; m < microbatches.size(); ++m) {
    if (microbatches[m].empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "microbatch_of names no sample for microbatch %d; the indices must "
          "be without gaps",
          m));
    }
  }
  packed.num_samples = batch.samples.size();
  packed.totals.resize(model.modules.size());
  for (const SampleId s : batch.samples.ids()) {
    packed.piece_of.push_back(s);
    const auto shapes = partition::SampleWork(model, batch.samples[s]);
    for (const ModuleId m : shapes.ids()) {
      packed.totals[m].tokens += shapes[m].tokens;
      packed.totals[m].instances += shapes[m].instances;
    }
  }
  packed.samples = std::move(batch);
  return packed;
}

}  // namespace

bool PlansAnew(const ServedJob& job, const StepBatch& batch) {
  return job.defer_surplus() && !batch.as_given;
}

absl::StatusOr<StepBatch> MakeStepBatch(const ServedJob& job,
                                        const v1::SubmitBatchRequest& request,
                                        const convert::BatchLimits& limits) {
  if (request.step() < 0 || request.step() > kMaxSteps) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "step is %d; it must be in [0, %d]", request.step(), kMaxSteps));
  }
  if (request.attempt() < 0 || request.attempt() > kMaxAttempts) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attempt is %d; it must be in [0, %d]",
                        request.attempt(), kMaxAttempts));
  }
  const int32_t replicas = job.spec().parallel.dp;
  if (request.has_replica() &&
      (request.replica() < 0 || request.replica() >= replicas)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "replica is %d; it must be in [0, %d)", request.replica(), replicas));
  }
  if (request.microbatch_of_size() > 0 && !request.has_replica()) {
    return absl::InvalidArgumentError(
        "microbatch_of is set without `replica`; microbatches are of one "
        "replica");
  }
  absl::StatusOr<BatchMetadata> batch =
      convert::FromProto(request.batch(), limits);
  if (!batch.ok()) return Prefixed("batch.", batch.status());
  if (batch->samples.empty()) {
    return absl::InvalidArgumentError(
        "batch.samples is empty; it must have at least one sample");
  }
  StepBatch result;
  result.step = request.step();
  result.attempt = request.attempt();
  result.replica = request.has_replica() ? request.replica() : -1;
  result.samples_print = FingerprintOf(*batch);
  FingerprintBuilder content;
  content.Add(result.samples_print).Add(result.replica);
  for (const int32_t m : request.microbatch_of()) content.Add(m);
  result.content = content.Build();
  result.samples = batch->samples.size();
  result.unused_media =
      NoteOfUnusedMedia(job.spec().model, *batch, request.step());
  for (const SampleMetadata& s : batch->samples) {
    result.text_tokens += s.text_tokens;
  }
  if (request.microbatch_of_size() > 0) {
    PIPELOOM_ASSIGN_OR_RETURN(
        result.packed,
        PackAsGiven(job.spec().model, request, *std::move(batch)));
    result.as_given = true;
  } else {
    JobSpec spec = job.unlimited();
    if (!request.has_replica()) spec.parallel.dp = replicas;
    PIPELOOM_ASSIGN_OR_RETURN(result.packed,
                              partition::PackStep(spec, *batch, 0));
    if (job.sample_costs().has_value()) {
      // Use as many microbatches as the job has, or more if the batch needs
      // them.
      spec.training.microbatches = job.spec().training.microbatches;
      for (const auto& replica : result.packed.packed) {
        spec.training.microbatches = std::max(
            spec.training.microbatches, static_cast<int32_t>(replica.size()));
      }
      result.packed =
          partition::BalanceStep(spec, *job.sample_costs(), result.packed);
    }
  }
  if (request.has_replica()) {
    // SplitMicrobatches looks for the samples at the replica's number in the
    // job.
    auto mine = std::move(result.packed.packed.front());
    result.packed.packed.assign(static_cast<size_t>(request.replica()) + 1, {});
    result.packed.packed.back() = std::move(mine);
  }
  return result;
}

absl::StatusOr<int64_t> CountTasks(const ServedJob& job, const StepBatch& batch,
                                   int32_t replica) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const Microbatches microbatches,
      partition::SplitMicrobatches(job.spec(), batch.packed, replica,
                                   job.partition()));
  return partition::MostTasks(microbatches, job.partition());
}

std::vector<v1::PlannedMicrobatch> PlannedMicrobatches(
    const StepBatch& batch, const std::vector<std::vector<SampleId>>& packed,
    const Microbatches& microbatches) {
  std::vector<v1::PlannedMicrobatch> planned;
  for (const std::vector<SampleId>& samples : packed) {
    v1::PlannedMicrobatch& microbatch = planned.emplace_back();
    int64_t text = 0;
    double whole_samples = 0;
    for (const SampleId s : samples) {
      const SampleMetadata& sample = batch.packed.samples.samples[s];
      v1::PlannedSample& p = *microbatch.add_samples();
      p.set_sample(batch.packed.piece_of[s].value());
      const bool is_piece = s.value() >= batch.packed.num_samples;
      if (is_piece) *p.mutable_piece() = convert::ToProto(sample);
      text += sample.text_tokens;
      if (!is_piece) ++whole_samples;
    }
    microbatch.set_text_tokens(text);
    // Without text, the pieces of one sample share its weight; see below.
    microbatch.set_loss_weight(batch.text_tokens > 0
                                   ? Real(text) / Real(batch.text_tokens)
                                   : whole_samples / Real(batch.samples));
  }
  if (batch.text_tokens == 0) {
    // The number of pieces into which each sample was cut.
    IdVector<SampleId, int32_t> pieces(static_cast<int32_t>(batch.samples), 0);
    const auto& piece_of = batch.packed.piece_of;
    for (int64_t s = batch.packed.num_samples; s < piece_of.size(); ++s) {
      ++pieces[piece_of[SampleId(static_cast<int32_t>(s))]];
    }
    for (v1::PlannedMicrobatch& microbatch : planned) {
      double weight = microbatch.loss_weight();
      for (const v1::PlannedSample& p : microbatch.samples()) {
        if (!p.has_piece()) continue;
        const int32_t count =
            pieces[SampleId(static_cast<int32_t>(p.sample()))];
        weight += 1 / (Real(count) * Real(batch.samples));
      }
      microbatch.set_loss_weight(weight);
    }
  }
  int32_t last_module = -1;
  int32_t last_microbatch = -1;
  int64_t first = 0;
  for (const SubMicrobatch& s : microbatches.sub_microbatches) {
    if (s.module.value() != last_module ||
        s.microbatch.value() != last_microbatch) {
      first = 0;
    }
    last_module = s.module.value();
    last_microbatch = s.microbatch.value();
    v1::PlannedSubMicrobatch& sub =
        *planned[static_cast<size_t>(s.microbatch.value())]
             .add_sub_microbatches();
    sub.set_module(s.module.value());
    sub.set_index(s.index);
    sub.set_first_instance(first);
    sub.set_instances(s.shape.instances);
    sub.set_tokens(s.data().tokens);
    sub.set_output_tokens(s.shape.output_tokens);
    first += s.shape.instances;
  }
  return planned;
}

}  // namespace pipeloom::service
