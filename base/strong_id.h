// Dense ids that cannot be mixed up, and vectors indexed by them.
//
//   using TaskId = Id<struct TaskTag>;
//   IdVector<TaskId, Duration> cost(graph.num_tasks());
//   for (const TaskId t : cost.ids()) cost[t] = ...;
//
// An id is a 32-bit index from 0. It is built from an integer on purpose only
// (`TaskId(3)`), never implicitly. A default id is `kNone`, which indexes
// nothing.
#ifndef PIPELOOM_BASE_STRONG_ID_H_
#define PIPELOOM_BASE_STRONG_ID_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/check.h"

namespace pipeloom {

template <typename Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(int32_t value) : value_(value) {}

  static constexpr Id None() { return Id(); }

  constexpr int32_t value() const { return value_; }
  constexpr bool is_none() const { return value_ < 0; }

  friend constexpr auto operator<=>(Id, Id) = default;
  constexpr Id& operator++() {
    ++value_;
    return *this;
  }

  template <typename H>
  friend H AbslHashValue(H state, Id id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  int32_t value_ = -1;
};

// The ids [begin, end), for range-based for loops.
template <typename IdType>
class IdRange {
 public:
  class Iterator {
   public:
    explicit Iterator(int32_t value) : value_(value) {}
    IdType operator*() const { return IdType(value_); }
    Iterator& operator++() {
      ++value_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    int32_t value_;
  };

  explicit IdRange(int32_t count) : IdRange(0, count) {}
  IdRange(int32_t begin, int32_t end) : begin_(begin), end_(end) {}
  Iterator begin() const { return Iterator(begin_); }
  Iterator end() const { return Iterator(end_); }

 private:
  int32_t begin_;
  int32_t end_;
};

// std::vector whose index is an id. Out-of-range access is a checked bug in
// debug builds.
template <typename IdType, typename T>
class IdVector {
 public:
  using value_type = T;

  IdVector() = default;
  explicit IdVector(int32_t size) : items_(static_cast<size_t>(size)) {}
  IdVector(int32_t size, const T& value)
      : items_(static_cast<size_t>(size), value) {}
  IdVector(std::initializer_list<T> items) : items_(items) {}
  explicit IdVector(std::vector<T> items) : items_(std::move(items)) {}

  typename std::vector<T>::reference operator[](IdType id) {
    PIPELOOM_DCHECK(Contains(id));
    return items_[static_cast<size_t>(id.value())];
  }
  typename std::vector<T>::const_reference operator[](IdType id) const {
    PIPELOOM_DCHECK(Contains(id));
    return items_[static_cast<size_t>(id.value())];
  }

  bool Contains(IdType id) const {
    return id.value() >= 0 && id.value() < size();
  }
  int32_t size() const { return static_cast<int32_t>(items_.size()); }
  bool empty() const { return items_.empty(); }
  IdRange<IdType> ids() const { return IdRange<IdType>(size()); }

  // Appends and returns the id of the new item.
  IdType push_back(T item) {
    items_.push_back(std::move(item));
    return IdType(size() - 1);
  }
  void resize(int32_t size) { items_.resize(static_cast<size_t>(size)); }
  void reserve(int32_t size) { items_.reserve(static_cast<size_t>(size)); }
  void clear() { items_.clear(); }
  void assign(int32_t size, const T& value) {
    items_.assign(static_cast<size_t>(size), value);
  }

  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  const std::vector<T>& items() const { return items_; }

  bool operator==(const IdVector&) const = default;

 private:
  std::vector<T> items_;
};

}  // namespace pipeloom

template <typename Tag>
struct std::hash<pipeloom::Id<Tag>> {
  size_t operator()(pipeloom::Id<Tag> id) const noexcept {
    return std::hash<int32_t>()(id.value());
  }
};

#endif  // PIPELOOM_BASE_STRONG_ID_H_
