#include "formats/profile/profile_reader.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "formats/profile/collective_reader.h"
#include "formats/profile/op_names.h"
#include "formats/text/json_reader.h"
#include "formats/text/object_reader.h"

namespace pipeloom::formats {
namespace {

constexpr int64_t kMaxOfAField = int64_t{1} << 40;
constexpr double kMaxUs = 1e12;
constexpr double kMaxRate = 1e18;
constexpr size_t kMaxRows = 2'000'000;

// A column of a table in the file. A column in which all values are `fallback`
// is written as an empty one.
struct Column {
  absl::string_view name{};
  std::vector<int64_t>* values = nullptr;
  std::optional<int64_t> fallback{};
};
struct Layout {
  std::vector<Column> grid{};
  std::vector<Column> site{};
};

Layout LayoutOf(GemmTable& t) {
  return {{{"m", &t.m, {}}},
          {{"n", &t.n, {}}, {"k", &t.k, {}}, {"groups", &t.groups, 1}}};
}
Layout LayoutOf(AttentionTable& t) {
  return {{{"batch", &t.batch, {}}, {"seq", &t.seq, {}}},
          {{"heads", &t.heads, {}},
           {"kv_heads", &t.kv_heads, {}},
           {"head_dim", &t.head_dim, {}},
           {"value_dim", &t.value_dim, {}},
           {"window", &t.window, 0}}};
}
Layout LayoutOf(StreamTable& t) {
  return {{{"tokens", &t.tokens, {}}}, {{"width", &t.width, {}}}};
}
Layout LayoutOf(MoeTable& t) {
  return {{{"tokens", &t.tokens, {}}},
          {{"width", &t.width, {}},
           {"ffn", &t.ffn, {}},
           {"experts", &t.experts, {}},
           {"top_k", &t.top_k, {}}}};
}

// ---- reading ---------------------------------------------------------------

template <typename Enum, typename Of>
void ReadName(ObjectReader& reader, absl::string_view name, const Of& of,
              absl::string_view allowed, Enum* out) {
  reader.Require(name);
  std::string text;
  reader.Read(name, &text);
  if (!reader.ok() || !reader.Has(name)) return;
  if (const std::optional<Enum> value = of(text)) {
    *out = *value;
  } else {
    reader.Refuse(name, allowed);
  }
}

template <typename Table>
void ReadCells(ObjectReader& reader, Table* table) {
  const Layout layout = LayoutOf(*table);
  std::vector<std::vector<int64_t>> grid(layout.grid.size());
  for (size_t c = 0; c < grid.size(); ++c) {
    const absl::string_view name = layout.grid[c].name;
    reader.Require(name);
    reader.ForEach(name, [&](const JsonValue& item, const std::string& path) {
      reader.ParseInteger(item, path, 1, kMaxOfAField, &grid[c].emplace_back());
    });
    if (reader.ok() && grid[c].size() != grid[0].size()) {
      reader.Fail(
          reader.LineOf(name),
          absl::StrCat("\"", name, "\" has ", grid[c].size(), " entries and \"",
                       layout.grid[0].name, "\" ", grid[0].size()));
    }
  }
  reader.Require("sites");
  const size_t points = grid[0].size();
  const size_t sizes = layout.site.size();
  reader.ForEach("sites", [&](const JsonValue& site, const std::string& path) {
    if (!reader.ok()) return;
    if (site.kind != JsonValue::Kind::kList ||
        site.items.size() != sizes + points) {
      reader.Refuse(
          site, path,
          absl::StrCat("a list of ", sizes, " sizes and ", points, " times"));
      return;
    }
    std::vector<int64_t> size(sizes);
    for (size_t c = 0; c < sizes; ++c) {
      const bool may_be_zero = layout.site[c].fallback == 0;
      reader.ParseInteger(site.items[c], path, may_be_zero ? 0 : 1,
                          kMaxOfAField, &size[c]);
    }
    for (size_t i = 0; i < points && reader.ok(); ++i) {
      double us = 0;
      reader.ParseNumber(site.items[sizes + i], path, 0, kMaxUs, &us);
      if (us <= 0) continue;
      for (size_t c = 0; c < grid.size(); ++c) {
        layout.grid[c].values->push_back(grid[c][i]);
      }
      for (size_t c = 0; c < sizes; ++c) {
        layout.site[c].values->push_back(size[c]);
      }
      table->us.push_back(us);
      if (table->us.size() > kMaxRows) {
        reader.Fail(site.line, absl::StrCat("more than ", kMaxRows, " times"));
        return;
      }
    }
  });
}

template <typename Table>
void ReadKind(ObjectReader& reader, Table* table) {
  ReadName(reader, "pass", PassOf, kPassWords, &table->pass);
  ReadName(reader, "dtype", DtypeOf, kDtypeWords, &table->dtype);
}

void ReadFit(ObjectReader& reader, std::vector<double>* fit) {
  reader.ForEach("fit", [&](const JsonValue& item, const std::string& path) {
    reader.ParseNumber(item, path, 1e-12, 1e12, &fit->emplace_back());
  });
}

void ReadTable(ObjectReader& reader, GemmTable* table) {
  ReadKind(reader, table);
  ReadFit(reader, &table->fit);
  ReadCells(reader, table);
}
void ReadTable(ObjectReader& reader, AttentionTable* table) {
  ReadKind(reader, table);
  ReadName(reader, "mask", MaskOf, kMaskWords, &table->mask);
  ReadFit(reader, &table->fit);
  ReadCells(reader, table);
}
void ReadTable(ObjectReader& reader, StreamTable* table) {
  ReadName(reader, "op", OpTypeOf, "a norm, an activation, ...", &table->op);
  ReadKind(reader, table);
  ReadCells(reader, table);
}
void ReadTable(ObjectReader& reader, MoeTable* table) {
  ReadKind(reader, table);
  ReadCells(reader, table);
}

template <typename Table>
void ReadTables(ObjectReader& reader, absl::string_view name,
                std::vector<Table>* out) {
  reader.ReadObjects(
      name, [&](ObjectReader& r) { ReadTable(r, &out->emplace_back()); });
}

// ---- writing ---------------------------------------------------------------

// Returns the shortest text that reads back equal.
std::string Number(double value) {
  for (int digits = 3; digits < 17; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    double again = 0;
    if (absl::SimpleAtod(text, &again) && again == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

std::string Numbers(const std::vector<double>& values) {
  return absl::StrJoin(values, ",", [](std::string* out, double value) {
    absl::StrAppend(out, Number(value));
  });
}

std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::vector<int64_t> RowOf(const std::vector<Column>& columns, size_t row) {
  std::vector<int64_t> values;
  for (const Column& column : columns) {
    values.push_back(column.values->empty() ? column.fallback.value_or(1)
                                            : (*column.values)[row]);
  }
  return values;
}

template <typename Table>
std::string Cells(Table table) {
  const Layout layout = LayoutOf(table);
  std::map<std::vector<int64_t>, size_t> grid;
  for (size_t i = 0; i < table.size(); ++i) grid[RowOf(layout.grid, i)] = 0;
  std::vector<std::vector<std::string>> columns(layout.grid.size());
  size_t next = 0;
  for (auto& [point, index] : grid) {
    index = next++;
    for (size_t c = 0; c < columns.size(); ++c) {
      columns[c].push_back(absl::StrCat(point[c]));
    }
  }
  std::map<std::vector<int64_t>, std::vector<double>> sites;
  for (size_t i = 0; i < table.size(); ++i) {
    std::vector<double>& times = sites[RowOf(layout.site, i)];
    times.resize(grid.size());
    times[grid[RowOf(layout.grid, i)]] = table.us[i];
  }
  std::string text;
  for (size_t c = 0; c < columns.size(); ++c) {
    absl::StrAppend(&text, "\"", layout.grid[c].name, "\":[",
                    absl::StrJoin(columns[c], ","), "],\n");
  }
  absl::StrAppend(&text, "\"sites\":[");
  const char* separator = "\n";
  for (const auto& [site, times] : sites) {
    absl::StrAppend(&text, separator, "[", absl::StrJoin(site, ","), ",",
                    Numbers(times), "]");
    separator = ",\n";
  }
  return text + "]}";
}

template <typename Table>
std::string Kind(const Table& table) {
  return absl::StrCat("\"pass\":\"", Name(table.pass), "\",\"dtype\":\"",
                      Name(table.dtype), "\",");
}

std::string Fit(const std::vector<double>& fit) {
  return fit.empty() ? "\n" : absl::StrCat("\"fit\":[", Numbers(fit), "],\n");
}

std::string Text(const GemmTable& t) {
  return absl::StrCat("{", Kind(t), Fit(t.fit), Cells(t));
}
std::string Text(const AttentionTable& t) {
  return absl::StrCat("{", Kind(t), "\"mask\":\"", Name(t.mask), "\",",
                      Fit(t.fit), Cells(t));
}
std::string Text(const StreamTable& t) {
  return absl::StrCat("{\"op\":\"", Name(t.op), "\",", Kind(t), "\n", Cells(t));
}
std::string Text(const MoeTable& t) {
  return absl::StrCat("{", Kind(t), "\n", Cells(t));
}

template <typename Table>
void AppendTables(absl::string_view name, const std::vector<Table>& tables,
                  std::string* out) {
  if (tables.empty()) return;
  absl::StrAppend(out, ",\n\"", name, "\": [");
  const char* separator = "\n";
  for (const Table& table : tables) {
    absl::StrAppend(out, separator, Text(table));
    separator = ",\n";
  }
  absl::StrAppend(out, "]");
}

}  // namespace

absl::StatusOr<DeviceProfile> ParseDeviceProfile(absl::string_view text,
                                                 absl::string_view file) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue value, ParseJson(text, file));
  DeviceProfile profile;
  ObjectReader reader(file, value, "");
  for (const char* name : {"version", "device", "rates"}) reader.Require(name);
  int64_t version = 0;
  reader.Read("version", int64_t{kDeviceProfileVersion},
              int64_t{kDeviceProfileVersion}, &version);
  reader.Read("device", &profile.device);
  reader.Read("derived_from", &profile.derived_from);
  reader.Read("derived_multiprocessors", int64_t{0}, int64_t{100'000},
              &profile.derived_multiprocessors);
  reader.Read("launch_us", 0.0, 1e6, &profile.launch_us);
  reader.ReadObject("rates", [&](ObjectReader& r) {
    DeviceRates& rates = profile.rates;
    r.Require("bf16_flops_per_second");
    r.Require("bytes_per_second");
    r.ReadPositive("bf16_flops_per_second", kMaxRate,
                   &rates.bf16_flops_per_second);
    r.Read("fp8_flops_per_second", 0.0, kMaxRate, &rates.fp8_flops_per_second);
    r.ReadPositive("bytes_per_second", kMaxRate, &rates.bytes_per_second);
    r.Read("multiprocessors", int64_t{1}, int64_t{100'000},
           &rates.multiprocessors);
  });
  reader.ReadObjects("sources", [&](ObjectReader& r) {
    ProfileSource& source = profile.sources.emplace_back();
    r.Read("section", &source.section);
    r.Read("repository", &source.repository);
    r.Read("commit", &source.commit);
    r.Read("licence", &source.licence);
    r.Read("changes", &source.changes);
  });
  reader.ReadObject("collectives", [&](ObjectReader& r) {
    ReadCollectives(r, &profile.collectives);
  });
  ReadTables(reader, "gemm", &profile.gemm);
  ReadTables(reader, "attention", &profile.attention);
  ReadTables(reader, "stream", &profile.stream);
  ReadTables(reader, "moe", &profile.moe);
  PIPELOOM_RETURN_IF_ERROR(reader.Finish());
  Canonicalize(&profile);
  if (const absl::Status status = ValidateDeviceProfile(profile);
      !status.ok()) {
    return ErrorAt(file, value.line, status.message());
  }
  return profile;
}

absl::StatusOr<DeviceProfile> LoadDeviceProfile(const std::string& name,
                                                const std::string& data_dir,
                                                const FileReader& read) {
  const bool is_path =
      absl::StrContains(name, '/') || absl::EndsWith(name, ".json");
  const std::string path =
      is_path ? name : absl::StrCat(data_dir, "/profiles/", name, ".json");
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, read(path));
  return ParseDeviceProfile(text, path);
}

std::string PrintDeviceProfile(const DeviceProfile& profile) {
  const DeviceRates& rates = profile.rates;
  std::string text = absl::StrCat(
      "{\n\"version\": ", kDeviceProfileVersion,
      ",\n\"device\": ", Quoted(profile.device),
      ",\n\"derived_from\": ", Quoted(profile.derived_from),
      ",\n\"rates\": {\"bf16_flops_per_second\": ",
      Number(rates.bf16_flops_per_second),
      ", \"fp8_flops_per_second\": ", Number(rates.fp8_flops_per_second),
      ", \"bytes_per_second\": ", Number(rates.bytes_per_second),
      ", \"multiprocessors\": ", rates.multiprocessors,
      "},\n\"derived_multiprocessors\": ", profile.derived_multiprocessors,
      ",\n\"launch_us\": ", Number(profile.launch_us), ",\n\"sources\": [");
  const char* separator = "\n";
  for (const ProfileSource& s : profile.sources) {
    absl::StrAppend(&text, separator, "{\"section\": ", Quoted(s.section),
                    ", \"repository\": ", Quoted(s.repository),
                    ", \"commit\": ", Quoted(s.commit),
                    ", \"licence\": ", Quoted(s.licence),
                    ", \"changes\": ", Quoted(s.changes), "}");
    separator = ",\n";
  }
  absl::StrAppend(&text, "]");
  AppendTables("gemm", profile.gemm, &text);
  AppendTables("attention", profile.attention, &text);
  AppendTables("stream", profile.stream, &text);
  AppendTables("moe", profile.moe, &text);
  if (!(profile.collectives == CollectiveProfile{})) {
    absl::StrAppend(&text, ",\n  \"collectives\": ",
                    PrintCollectives(profile.collectives, 2));
  }
  return text + "\n}\n";
}

}  // namespace pipeloom::formats
