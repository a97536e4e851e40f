// What the tests of sealed codes and of the index over them share: stamps, brute force, files under damage.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "distance.h"
#include "rows.h"
#include "sealed_codes.h"
#include "simd_kernels.h"

namespace pymemstore {
namespace test {

using Codes = std::shared_ptr<const SealedCodes>;

inline DerivedStamp StampOf(uint32_t dim) {
  DerivedStamp stamp;
  stamp.store_id[3] = 7;
  stamp.dim = dim;
  stamp.vector_file = 1;
  return stamp;
}

inline Codes Seal(const RowView& view, const std::string& path, int threads = 1) {
  CHECK_OK(SealCodes(view, path, StampOf(view.dim), threads, nullptr, nullptr));
  auto codes = SealedCodes::Open(path, StampOf(view.dim));
  CHECK_OK(codes);
  CHECK_EQ((*codes)->rows(), view.rows);
  CHECK(!std::filesystem::exists(path + ".tmp"));
  CHECK(!std::filesystem::exists(path + ".rows.tmp"));
  return *codes;
}

// Canonical scores of all rows for all queries. By the kernel in use: distance_test.cc compares those.
struct Scores {
  uint32_t dim;
  uint64_t rows;
  std::vector<float> queries;
  std::vector<double> of;  // [query][row]
  Scores(const RowView& view, std::vector<float> asked) : dim(view.dim), rows(view.rows), queries(std::move(asked)) {
    for (size_t j = 0; j < queries.size() / dim; ++j)
      for (uint64_t i = 0; i < rows; ++i) of.push_back(CanonicalDot(queries.data() + j * dim, view.row(i), dim));
  }
  size_t count() const { return queries.size() / dim; }
  const double* query(size_t j) const { return of.data() + j * rows; }
};

inline void CheckSame(const std::vector<ScoredRow>& got, const double* scores, uint64_t rows, double tau) {
  size_t at = 0;
  for (uint64_t i = 0; i < rows; ++i) {
    if (!(scores[i] >= tau - kScoreSlack)) continue;
    CHECK(at < got.size());
    CHECK_EQ(got[at].row, i);
    CHECK_EQ(std::memcmp(&got[at].score, &scores[i], sizeof(double)), 0);
    ++at;
  }
  CHECK_EQ(got.size(), at);
}

// Queries [first, first + taus.size()) of `scores`, over the first `visible` rows.
inline ScanStats CheckExact(const SealedCodes& codes, RowView view, const Scores& scores, size_t first,
                     const std::vector<double>& taus, int threads) {
  const size_t n = taus.size();
  std::vector<std::vector<ScoredRow>> got(n);
  ScanStats stats;
  CHECK_OK(codes.WithinThreshold(view, scores.queries.data() + first * scores.dim, n, taus.data(), 1, threads, nullptr,
                                 &got, &stats));
  for (size_t j = 0; j < n; ++j)
    CheckSame(got[j], scores.query(first + j), std::min(view.rows, codes.rows()), taus[j]);
  return stats;
}

// A threshold for query j: one of the scale, or one that a score meets to the last bit, or a bit above or below.
inline double TauFor(const Scores& scores, size_t j, size_t k, std::mt19937* random) {
  constexpr double kTaus[] = {0.6, -1, 0.8, 0, 0.3, 0.95, 1, 1.1, 0.7, 0.9};
  if (k % 3 != 0) return kTaus[k / 2 % std::size(kTaus)];
  // Of the highest scores, mostly: there a threshold decides.
  const double* all = scores.query(j);
  double score = all[(*random)() % scores.rows];
  for (int tries = k % 2 != 0 ? 200 : 3; tries > 0; --tries) score = std::max(score, all[(*random)() % scores.rows]);
  const double tie = Tie(score);
  return k % 9 == 0 ? tie : k % 9 == 3 ? std::nextafter(tie, 2) : std::nextafter(tie, -2);
}

inline void CheckBatches(const SealedCodes& codes, const RowView& view, const Scores& scores, const std::vector<size_t>& sizes,
                  int threads, std::mt19937* random) {
  size_t k = (*random)() % 90;
  for (size_t n : sizes) {
    const size_t first = (*random)() % (scores.count() - n + 1);
    std::vector<double> taus(n);
    for (size_t j = 0; j < n; ++j) taus[j] = TauFor(scores, first + j, k++, random);
    CheckExact(codes, view, scores, first, taus, threads);
  }
}

inline std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Under another inode, as a file that is put in place.
inline void Replace(const std::string& path, const std::string& bytes) {
  std::ofstream(path + ".new", std::ios::binary) << bytes;
  std::filesystem::rename(path + ".new", path);
}

inline std::string Flip(std::string bytes, size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
  return bytes;
}

inline DerivedHeader HeaderIn(const std::string& bytes) {
  DerivedHeader header;
  CHECK_EQ(DecodeDerivedHeader(Bytes(bytes).substr(0, kDerivedHeaderBytes), &header), std::string());
  return header;
}

inline bool Refused(const Status& s) {
  return s.code() == Code::kCorruption || s.code() == Code::kNotFound || s.code() == Code::kIOError;
}

// Whatever is lost, what comes back is right.
inline void CheckRight(const SealedCodes& codes, const RowView& view, const Scores& scores) {
  for (size_t n : {size_t{1}, scores.count()}) {
    std::vector<std::vector<ScoredRow>> got(n);
    std::vector<double> taus(n);
    for (size_t j = 0; j < n; ++j) taus[j] = j % 2 != 0 ? 0.8 : 0.2;
    ScanStats stats;
    CHECK_OK(codes.WithinThreshold(view, scores.queries.data(), n, taus.data(), 1, 1, nullptr, &got, &stats));
    for (size_t j = 0; j < n; ++j) {
      for (const ScoredRow& row : got[j]) {
        CHECK(row.row < view.rows);
        CHECK_EQ(row.score, scores.query(j)[row.row]);
        CHECK(row.score >= taus[j] - kScoreSlack);
      }
    }
  }
}


}  // namespace test
}  // namespace pymemstore
