#include "ir/profile/device_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace pipeloom {
namespace {

constexpr int64_t kMaxOfAField = int64_t{1} << 40;

using Column = std::pair<absl::string_view, std::vector<int64_t>*>;

std::string NameOf(const GemmTable& t) {
  return absl::StrCat("gemm ", Name(t.pass), " ", Name(t.dtype));
}
std::string NameOf(const AttentionTable& t) {
  return absl::StrCat("attention ", Name(t.mask), " ", Name(t.pass), " ",
                      Name(t.dtype));
}
std::string NameOf(const StreamTable& t) {
  return absl::StrCat(Name(t.op), " ", Name(t.pass), " ", Name(t.dtype));
}
std::string NameOf(const MoeTable& t) {
  return absl::StrCat("moe ", Name(t.pass), " ", Name(t.dtype));
}

// Columns in the order by which rows are sorted; the last one varies fastest.
// Columns that may be empty are in `optional`.
struct ColumnList {
  std::vector<Column> required{};
  std::vector<Column> optional{};
};

ColumnList ColumnsOf(GemmTable& t) {
  return {{{"n", &t.n}, {"k", &t.k}, {"m", &t.m}}, {{"groups", &t.groups}}};
}
ColumnList ColumnsOf(AttentionTable& t) {
  return {{{"heads", &t.heads},
           {"kv_heads", &t.kv_heads},
           {"head_dim", &t.head_dim},
           {"batch", &t.batch},
           {"seq", &t.seq}},
          {{"value_dim", &t.value_dim}, {"window", &t.window}}};
}
ColumnList ColumnsOf(StreamTable& t) {
  return {{{"width", &t.width}, {"tokens", &t.tokens}}, {}};
}
ColumnList ColumnsOf(MoeTable& t) {
  return {{{"width", &t.width},
           {"ffn", &t.ffn},
           {"experts", &t.experts},
           {"top_k", &t.top_k},
           {"tokens", &t.tokens}},
          {}};
}

template <typename Table>
ColumnList ColumnsOf(const Table& table) {
  return ColumnsOf(const_cast<Table&>(table));  // Only read.
}

bool HasPass(const GemmTable& t) { return t.pass != QueryPass::kBackward; }
template <typename Table>
bool HasPass(const Table& t) {
  return t.pass == QueryPass::kForward || t.pass == QueryPass::kBackward;
}

absl::Status ValidateStream(const StreamTable& table) {
  if (IsStreaming(table.op) || table.op == OpType::kOptimizer) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a stream table's op is \"", Name(table.op),
                   "\"; it must be one that memory bounds"));
}

template <typename Table>
absl::Status ValidateTable(const Table& table) {
  const std::string name = NameOf(table);
  if (!HasPass(table)) {
    return absl::InvalidArgumentError(
        absl::StrCat("table \"", name, "\": the operator has no pass \"",
                     Name(table.pass), "\""));
  }
  const ColumnList columns = ColumnsOf(table);
  const auto check = [&](const Column& column, int64_t least) -> absl::Status {
    if (column.second->size() != table.us.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table \"", name, "\": column \"", column.first, "\" has ",
          column.second->size(), " rows and \"us\" ", table.us.size()));
    }
    for (size_t i = 0; i < column.second->size(); ++i) {
      const int64_t value = (*column.second)[i];
      if (value >= least && value <= kMaxOfAField) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "table \"", name, "\" row ", i, ": \"", column.first, "\" is ", value,
          "; it must be in [", least, ", ", kMaxOfAField, "]"));
    }
    return absl::OkStatus();
  };
  for (const Column& column : columns.required) {
    PIPELOOM_RETURN_IF_ERROR(check(column, 1));
  }
  for (const Column& column : columns.optional) {
    if (column.second->empty()) continue;
    PIPELOOM_RETURN_IF_ERROR(check(column, column.first == "window" ? 0 : 1));
  }
  for (size_t i = 0; i < table.us.size(); ++i) {
    if (std::isfinite(table.us[i]) && table.us[i] > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("table \"", name, "\" row ", i, ": \"us\" is ",
                     table.us[i], "; it must be > 0"));
  }
  return absl::OkStatus();
}

template <typename Table>
absl::Status ValidateTables(const std::vector<Table>& tables) {
  std::vector<std::string> names;
  for (const Table& table : tables) {
    PIPELOOM_RETURN_IF_ERROR(ValidateTable(table));
    names.push_back(NameOf(table));
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("table \"", *twice, "\" is given twice"));
}

// Sorts the rows by their sizes and merges rows of equal sizes.
template <typename Table>
void SortRows(Table* table) {
  ColumnList list = ColumnsOf(*table);
  std::vector<std::vector<int64_t>*> columns;
  for (const Column& c : list.optional) {
    if (!c.second->empty()) columns.push_back(c.second);
  }
  for (const Column& c : list.required) columns.push_back(c.second);
  std::vector<size_t> order(table->us.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto compare = [&](size_t a, size_t b) {
    for (const std::vector<int64_t>* column : columns) {
      if ((*column)[a] != (*column)[b]) {
        return (*column)[a] < (*column)[b] ? -1 : 1;
      }
    }
    return 0;
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int by_size = compare(a, b);
    return by_size != 0 ? by_size < 0 : table->us[a] < table->us[b];
  });
  std::vector<size_t> kept;
  for (size_t i = 0; i < order.size();) {
    size_t end = i + 1;
    while (end < order.size() && compare(order[i], order[end]) == 0) ++end;
    kept.push_back(order[i + (end - i - 1) / 2]);
    i = end;
  }
  const auto gather = [&](auto& column) {
    auto sorted = column;
    sorted.resize(kept.size());
    for (size_t i = 0; i < kept.size(); ++i) sorted[i] = column[kept[i]];
    column = std::move(sorted);
  };
  for (std::vector<int64_t>* column : columns) gather(*column);
  gather(table->us);
}

template <typename Table>
void SortTables(std::vector<Table>* tables) {
  for (Table& table : *tables) SortRows(&table);
  std::stable_sort(
      tables->begin(), tables->end(),
      [](const Table& a, const Table& b) { return NameOf(a) < NameOf(b); });
}

// Returns the table with the kind of `like`, and makes it if there is none.
template <typename Table>
Table& TableLike(std::vector<Table>* tables, const Table& like) {
  for (Table& table : *tables) {
    if (NameOf(table) == NameOf(like)) return table;
  }
  return tables->emplace_back(like);
}

}  // namespace

absl::Status ValidateDeviceProfile(const DeviceProfile& profile) {
  const DeviceRates& rates = profile.rates;
  const auto good = [](double value) {
    return std::isfinite(value) && value > 0;
  };
  if (profile.device.empty()) {
    return absl::InvalidArgumentError("a device profile without a device");
  }
  if (!good(rates.bf16_flops_per_second) || !good(rates.bytes_per_second)) {
    return absl::InvalidArgumentError(
        absl::StrCat("profile of ", profile.device,
                     ": the rates of bf16 products and of memory must be > 0"));
  }
  if (!std::isfinite(rates.fp8_flops_per_second) ||
      rates.fp8_flops_per_second < 0 || !std::isfinite(profile.launch_us) ||
      profile.launch_us < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("profile of ", profile.device,
                     ": the fp8 rate and launch_us must be >= 0"));
  }
  PIPELOOM_RETURN_IF_ERROR(ValidateTables(profile.gemm));
  PIPELOOM_RETURN_IF_ERROR(ValidateTables(profile.attention));
  PIPELOOM_RETURN_IF_ERROR(ValidateTables(profile.stream));
  PIPELOOM_RETURN_IF_ERROR(ValidateTables(profile.moe));
  for (const StreamTable& table : profile.stream) {
    PIPELOOM_RETURN_IF_ERROR(ValidateStream(table));
  }
  return ValidateCollectiveProfile(profile.collectives);
}

void Canonicalize(DeviceProfile* profile) {
  const auto drop_if_all = [](std::vector<int64_t>* column, int64_t value) {
    if (std::all_of(column->begin(), column->end(),
                    [&](int64_t v) { return v == value; })) {
      column->clear();
    }
  };
  for (GemmTable& table : profile->gemm) drop_if_all(&table.groups, 1);
  for (AttentionTable& table : profile->attention) {
    if (table.value_dim.empty()) table.value_dim = table.head_dim;
    drop_if_all(&table.window, 0);
  }
  SortTables(&profile->gemm);
  SortTables(&profile->attention);
  SortTables(&profile->stream);
  SortTables(&profile->moe);
}

DeviceProfile ProfileOfPoints(absl::Span<const OpMeasurement> points) {
  DeviceProfile profile;
  for (const OpMeasurement& point : points) {
    const OpQuery& q = point.query;
    if (q.op == OpType::kGemm || q.op == OpType::kGroupedGemm) {
      GemmTable& t =
          TableLike(&profile.gemm, GemmTable{.pass = q.pass, .dtype = q.dtype});
      t.m.push_back(q.m);
      t.n.push_back(q.n);
      t.k.push_back(q.k);
      t.groups.push_back(q.op == OpType::kGemm ? 1 : q.groups);
      t.us.push_back(point.time_us);
    } else if (q.op == OpType::kAttention) {
      AttentionTable& t = TableLike(
          &profile.attention,
          AttentionTable{.pass = q.pass, .dtype = q.dtype, .mask = q.mask});
      t.batch.push_back(q.batch);
      t.seq.push_back(q.seq);
      t.heads.push_back(q.heads);
      t.kv_heads.push_back(q.kv_heads > 0 ? q.kv_heads : q.heads);
      t.head_dim.push_back(q.head_dim);
      t.value_dim.push_back(q.head_dim);
      t.window.push_back(q.window);
      t.us.push_back(point.time_us);
    } else if (IsStreaming(q.op) || q.op == OpType::kOptimizer) {
      StreamTable& t =
          TableLike(&profile.stream,
                    StreamTable{.op = q.op, .pass = q.pass, .dtype = q.dtype});
      const bool optimizer = q.op == OpType::kOptimizer;
      t.tokens.push_back(optimizer ? q.parameters : q.tokens);
      t.width.push_back(optimizer ? 1 : q.width);
      t.us.push_back(point.time_us);
    } else if (q.op == OpType::kMoe) {
      MoeTable& t =
          TableLike(&profile.moe, MoeTable{.pass = q.pass, .dtype = q.dtype});
      t.tokens.push_back(q.tokens);
      t.width.push_back(q.width);
      t.ffn.push_back(q.ffn);
      t.experts.push_back(q.experts);
      t.top_k.push_back(q.top_k);
      t.us.push_back(point.time_us);
    }
  }
  Canonicalize(&profile);
  return profile;
}

}  // namespace pipeloom
