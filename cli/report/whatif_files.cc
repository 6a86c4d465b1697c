#include "cli/report/whatif_files.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "formats/text/json_writer.h"
#include "studies/whatif/whatif_run.h"

namespace pipeloom::cli {
namespace {

std::string CsvCell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace

std::string ValueOf(const studies::WhatIfCase& c, const std::string& path) {
  std::string value;
  for (const formats::JobOverride& change : c.changes) {
    if (change.path == path) value = change.value;
  }
  return value;
}

std::string WhatIfCsv(const std::vector<studies::WhatIfCase>& cases,
                      const std::vector<studies::WhatIfOutcome>& outcomes) {
  std::vector<std::string> paths;
  for (const studies::WhatIfCase& c : cases) {
    for (const formats::JobOverride& change : c.changes) {
      if (std::find(paths.begin(), paths.end(), change.path) == paths.end()) {
        paths.push_back(change.path);
      }
    }
  }
  const std::vector<bool> front = studies::ParetoFront(cases, outcomes);
  std::string text = "configuration";
  for (const std::string& path : paths) {
    absl::StrAppend(&text, ",", CsvCell(path));
  }
  absl::StrAppend(&text,
                  ",gpus,step_time_us,samples_per_second,bubble_ratio,"
                  "epilogue_ratio,mfu,"
                  "peak_bytes,limit_bytes,cuts_samples,best,error\n");
  for (size_t i = 0; i < cases.size(); ++i) {
    const studies::WhatIfOutcome& o = outcomes[i];
    absl::StrAppend(&text, CsvCell(cases[i].label));
    for (const std::string& path : paths) {
      absl::StrAppend(&text, ",", CsvCell(ValueOf(cases[i], path)));
    }
    if (o.ok()) {
      absl::StrAppendFormat(
          &text, ",%d,%.3f,%.6f,%.6f,%.6f,%.6f,%d,%d,%d,%d,", o.gpus,
          ToMicroseconds(o.step_time), o.samples_per_second(), o.bubble_ratio,
          o.epilogue_ratio, o.mfu, o.peak.count(), o.limit.count(),
          static_cast<int>(o.cuts_more), static_cast<int>(front[i]));
    } else {
      absl::StrAppend(&text, ",,,,,,,,,,,", CsvCell(o.error));
    }
    text += '\n';
  }
  return text;
}

std::string WhatIfJson(const std::string& job,
                       const std::vector<studies::WhatIfCase>& cases,
                       const std::vector<studies::WhatIfOutcome>& outcomes) {
  const std::vector<bool> front = studies::ParetoFront(cases, outcomes);
  formats::JsonWriter json(true);
  json.BeginObject().Key("job").String(job);
  json.Key("configurations").BeginArray();
  for (size_t i = 0; i < cases.size(); ++i) {
    const studies::WhatIfOutcome& o = outcomes[i];
    json.BeginObject().Key("label").String(cases[i].label);
    json.Key("set").BeginObject();
    std::map<std::string, std::string> set;
    for (const formats::JobOverride& c : cases[i].changes) {
      set[c.path] = c.value;
    }
    for (const auto& [path, value] : set) json.Key(path).String(value);
    json.EndObject();
    if (!o.ok()) {
      json.Key("error").String(o.error).EndObject();
      continue;
    }
    json.Key("gpus").Int(o.gpus);
    json.Key("step_time_us").Micros(o.step_time);
    json.Key("lower_bound_us").Micros(o.lower_bound);
    json.Key("samples").Int(o.samples);
    json.Key("samples_per_second").Number(o.samples_per_second());
    json.Key("bubble_ratio").Number(o.bubble_ratio);
    json.Key("epilogue_ratio").Number(o.epilogue_ratio);
    json.Key("mfu").Number(o.mfu);
    json.Key("peak_bytes").Count(o.peak);
    json.Key("limit_bytes").Count(o.limit);
    json.Key("cuts_samples").Bool(o.cuts_more);
    json.Key("best").Bool(front[i]).EndObject();
  }
  return json.EndArray().EndObject().text() + "\n";
}

}  // namespace pipeloom::cli
