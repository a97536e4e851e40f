// Rows, queries and thresholds for tests of searches.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "distance.h"
#include "exact_scan.h"
#include "simd_kernels.h"

namespace pymemstore::test {

// Rows at an odd stride and start, as in a file that aligns nothing.
class Rows {
 public:
  explicit Rows(uint32_t dim, size_t pad = 1) : dim_(dim), step_(dim + pad) {}

  void Add(const std::vector<float>& v) {
    std::vector<float> unit(dim_);
    CHECK(Normalise(v.data(), dim_, unit.data()));
    unit.resize(step_, std::numeric_limits<float>::quiet_NaN());  // padding that must never be read as values
    data_.insert(data_.end(), unit.begin(), unit.end());
    ++rows_;
  }
  // As it is: not of unit length, perhaps, or not even of numbers.
  void AddRaw(const std::vector<float>& v) {
    data_.insert(data_.end(), v.begin(), v.begin() + dim_);
    data_.resize(data_.size() + step_ - dim_, std::numeric_limits<float>::quiet_NaN());
    ++rows_;
  }
  void Set(uint64_t row, size_t i, float value) { data_[row * step_ + i] = value; }
  RowView View(uint64_t rows) const {
    RowView v;
    v.base = reinterpret_cast<const uint8_t*>(data_.data());
    v.stride = step_ * sizeof(float);
    v.dim = dim_;
    v.rows = rows;
    return v;
  }
  RowView View() const { return View(rows_); }
  uint64_t rows() const { return rows_; }
  std::vector<float> Row(uint64_t i) const { return {View().row(i), View().row(i) + dim_}; }

 private:
  uint32_t dim_;
  size_t step_;
  uint64_t rows_ = 0;
  std::vector<float> data_ = {};
};

enum class Shape { kUniform, kClustered, kLowRank, kSpiky, kSparse };

class Source {
 public:
  Source(uint32_t dim, Shape shape, unsigned seed) : dim_(dim), shape_(shape), random_(seed) {
    const size_t n = shape == Shape::kLowRank ? 5 : 40;
    for (size_t i = 0; i < n; ++i) centres_.push_back(Normal());
  }
  std::vector<float> Next() {
    std::vector<float> v(dim_, 0.0F);
    switch (shape_) {
      case Shape::kUniform:
        return Normal();
      case Shape::kClustered: {
        const std::vector<float>& c = centres_[random_() % centres_.size()];
        const std::vector<float> noise = Normal();
        const float spread = 0.1F + 0.2F * static_cast<float>(random_() % 8);
        for (size_t i = 0; i < dim_; ++i) v[i] = c[i] + spread * noise[i];
        return v;
      }
      case Shape::kLowRank:
        for (const std::vector<float>& c : centres_) {
          const float w = normal_(random_);
          for (size_t i = 0; i < dim_; ++i) v[i] += w * c[i];
        }
        return v;
      case Shape::kSpiky:  // a few coordinates hold nearly all: the worst case of a code's scale
        for (float& x : v) x = 1e-4F * normal_(random_);
        v[random_() % dim_] += random_() % 2 != 0 ? 1.0F : -1.0F;
        v[random_() % dim_] += 0.5F;
        return v;
      case Shape::kSparse: {  // one value and up, of both signs; some all alike, some rows dense, some repeated
        if (random_() % 40 == 0) return Normal();
        if (random_() % 8 == 0) {
          for (size_t i = 0; i < dim_; i += 7) v[i] = centres_[random_() % 3][i];
          return v;
        }
        const bool alike = random_() % 3 == 0;
        for (size_t n = 1 + random_() % std::clamp(dim_ / 6, 1U, 20U); n > 0; --n) {
          const float x = alike ? 1.0F : normal_(random_);
          v[random_() % dim_] = random_() % 2 != 0 ? x : -x;
        }
        v[random_() % dim_] = 0.3F;
        return v;
      }
    }
    return v;
  }
  std::vector<float> Unit() {
    std::vector<float> v = Next(), out(dim_);
    CHECK(Normalise(v.data(), dim_, out.data()));
    return out;
  }
  std::mt19937& random() { return random_; }

 private:
  std::vector<float> Normal() {
    std::vector<float> v(dim_);
    for (float& x : v) x = normal_(random_);
    return v;
  }
  uint32_t dim_;
  Shape shape_;
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::vector<std::vector<float>> centres_;
};

inline double Truth(const float* a, const float* b, size_t dim) { return ScalarKernels()->canonical_dot(a, b, dim); }

// Queries row-major, half of them stored rows.
inline std::vector<float> MakeQueries(Source* source, const Rows& rows, size_t n) {
  std::vector<float> out;
  for (size_t i = 0; i < n; ++i) {
    const std::vector<float> q =
        i % 2 != 0 && rows.rows() > 0 ? rows.Row(source->random()() % rows.rows()) : source->Unit();
    out.insert(out.end(), q.begin(), q.end());
  }
  return out;
}

// A threshold that `score` meets to the last bit: the next larger one excludes it.
inline double Tie(double score) {
  double tau = score + kScoreSlack;
  while (tau - kScoreSlack > score) tau = std::nextafter(tau, -2);
  while (std::nextafter(tau, 2) - kScoreSlack <= score) tau = std::nextafter(tau, 2);
  return tau;
}

template <typename F>
void ForEachKernel(F f) {
  const std::string before = KernelName();
  for (const char* name : {"scalar", "avx2", "avx512vnni", "amx", "neon"}) {
    if (UseKernels(name)) f();
  }
  CHECK(UseKernels(before.c_str()));
}

}  // namespace pymemstore::test
