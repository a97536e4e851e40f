#include "clusters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "chunk_runner.h"
#include "scan_math.h"
#include "simd_kernels.h"

namespace pymemstore {
namespace {

constexpr size_t kProbes = 8;          // tops whose centroids are looked at
constexpr int kTopRounds = 6, kRounds = 5, kRefinements = 3;
constexpr size_t kTopSample = 32768;
constexpr size_t kChunkRows = 1024;

void Dots(const float* rows, size_t n, size_t dim, const float* v, float* out) {
  ActiveKernels().dot_rows(reinterpret_cast<const uint8_t*>(rows), dim * sizeof(float), n, v, dim, out);
}

float HalfNorm(const float* c, size_t dim) { return static_cast<float>(CanonicalDot(c, c, dim) / 2); }

// The nearest of n centroids: the largest v.c - |c|^2 / 2.
size_t NearestOf(const float* centroids, const float* halves, size_t n, size_t dim, const float* v, float* scratch) {
  Dots(centroids, n, dim, v, scratch);
  size_t best = 0;
  for (size_t i = 1; i < n; ++i) {
    if (scratch[i] - halves[i] > scratch[best] - halves[best]) best = i;
  }
  return best;
}

// Moves each centroid to the mean of its rows; one without rows stays where it is.
void MoveToMeans(const float* sample, const std::vector<uint32_t>& rows, const std::vector<uint32_t>& owner, size_t dim,
                 float* centroids, float* halves, size_t n) {
  std::vector<double> sums(n * dim, 0.0);
  std::vector<uint32_t> counts(n, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const float* v = sample + static_cast<size_t>(rows[i]) * dim;
    double* sum = sums.data() + owner[i] * dim;
    for (size_t k = 0; k < dim; ++k) sum[k] += static_cast<double>(v[k]);
    ++counts[owner[i]];
  }
  for (size_t j = 0; j < n; ++j) {
    if (counts[j] == 0) continue;
    for (size_t k = 0; k < dim; ++k) centroids[j * dim + k] = static_cast<float>(sums[j * dim + k] / counts[j]);
    halves[j] = HalfNorm(centroids + j * dim, dim);
  }
}

// k-means of the given sample rows into n centroids, which begin at rows drawn from them.
Status Lloyd(const float* sample, const std::vector<uint32_t>& rows, size_t dim, size_t n, int rounds, int threads,
             const std::function<bool()>& interrupted, std::mt19937* random, float* centroids, float* halves) {
  for (size_t j = 0; j < n; ++j) {
    const size_t first = rows.size() * j / n, end = std::max(rows.size() * (j + 1) / n, first + 1);
    const size_t pick = std::uniform_int_distribution<size_t>(first, end - 1)(*random);
    std::memcpy(centroids + j * dim, sample + static_cast<size_t>(rows[pick]) * dim, dim * sizeof(float));
    halves[j] = HalfNorm(centroids + j * dim, dim);
  }
  std::vector<uint32_t> owner(rows.size());
  const uint64_t chunks = (rows.size() + kChunkRows - 1) / kChunkRows;
  for (int round = 0; round < rounds; ++round) {
    PMS_RETURN_IF_ERROR(RunChunks(chunks, static_cast<size_t>(threads - 1), interrupted, [&](size_t, uint64_t chunk) {
      std::vector<float> scratch(n);
      const size_t end = std::min<size_t>(rows.size(), (chunk + 1) * kChunkRows);
      for (size_t i = chunk * kChunkRows; i < end; ++i) {
        owner[i] = static_cast<uint32_t>(
            NearestOf(centroids, halves, n, dim, sample + static_cast<size_t>(rows[i]) * dim, scratch.data()));
      }
      return Status::Ok();
    }));
    MoveToMeans(sample, rows, owner, dim, centroids, halves, n);
  }
  return Status::Ok();
}

}  // namespace

uint32_t Clusters::Assign(const float* v, std::vector<float>* scratch) const {
  const size_t tops = top_halves_.size();
  scratch->resize(std::max<size_t>(scratch->size(), tops + size()));
  float* near = scratch->data();
  Dots(tops_.data(), tops, dim_, v, near);
  uint32_t best = 0;
  float best_score = -HUGE_VALF;
  for (size_t probe = 0; probe < std::min(kProbes, tops); ++probe) {
    size_t top = tops;
    for (size_t t = 0; t < tops; ++t) {
      if (near[t] > -HUGE_VALF && (top == tops || near[t] - top_halves_[t] > near[top] - top_halves_[top])) top = t;
    }
    if (top == tops) break;
    near[top] = -HUGE_VALF;
    const uint32_t first = first_[top], count = first_[top + 1] - first;
    float* scores = scratch->data() + tops;
    Dots(centroid(first), count, dim_, v, scores);
    for (uint32_t i = 0; i < count; ++i) {
      const float score = scores[i] - half_norms_[first + i];
      if (score > best_score) {
        best_score = score;
        best = first + i;
      }
    }
  }
  return best;
}

Status Clusters::Train(const float* sample, size_t n, uint32_t dim, uint32_t wanted, int threads,
                       const std::function<void(uint64_t, uint64_t)>& progress,
                       const std::function<bool()>& interrupted, Clusters* out) {
  Clusters c;
  c.dim_ = dim;
  const size_t tops = std::max<size_t>(1, static_cast<size_t>(std::sqrt(static_cast<double>(wanted))));
  std::mt19937 random(12345);  // fixed: the same rows give the same codes
  std::vector<uint32_t> rows;
  const size_t top_rows = std::min(n, kTopSample);
  for (size_t i = 0; i < top_rows; ++i) rows.push_back(static_cast<uint32_t>(n * i / top_rows));
  c.tops_.resize(tops * dim);
  c.top_halves_.resize(tops);
  const uint64_t steps = tops + 1 + kRefinements;
  progress(0, steps);
  PMS_RETURN_IF_ERROR(Lloyd(sample, rows, dim, tops, kTopRounds, threads, interrupted, &random, c.tops_.data(),
                            c.top_halves_.data()));
  std::vector<std::vector<uint32_t>> members(tops);
  {
    std::vector<uint32_t> owner(n);
    PMS_RETURN_IF_ERROR(RunChunks((n + kChunkRows - 1) / kChunkRows, static_cast<size_t>(threads - 1), interrupted,
                                  [&](size_t, uint64_t chunk) {
      std::vector<float> scratch(tops);
      for (size_t i = chunk * kChunkRows; i < std::min<size_t>(n, (chunk + 1) * kChunkRows); ++i)
        owner[i] = static_cast<uint32_t>(NearestOf(c.tops_.data(), c.top_halves_.data(), tops, dim, sample + i * dim,
                                                 scratch.data()));
      return Status::Ok();
    }));
    for (size_t i = 0; i < n; ++i) members[owner[i]].push_back(static_cast<uint32_t>(i));
  }
  for (size_t t = 0; t < tops; ++t) {
    c.first_.push_back(c.size());
    const double share = static_cast<double>(members[t].size()) / static_cast<double>(n);
    const size_t count = std::min(members[t].size(), static_cast<size_t>(std::ceil(wanted * share)));
    c.centroids_.resize((c.size() + count) * dim);
    c.half_norms_.resize(c.size() + count);
    progress(1 + t, steps);
    if (count == 0) continue;
    float* first = c.centroids_.data() + static_cast<size_t>(c.first_[t]) * dim;
    PMS_RETURN_IF_ERROR(Lloyd(sample, members[t], dim, count, kRounds, threads, interrupted, &random, first,
                              c.half_norms_.data() + c.first_[t]));
  }
  c.first_.push_back(c.size());
  std::vector<uint32_t> all(n), owner(n);
  for (size_t i = 0; i < n; ++i) all[i] = static_cast<uint32_t>(i);
  for (int round = 0; round < kRefinements; ++round) {
    progress(1 + tops + static_cast<uint64_t>(round), steps);
    PMS_RETURN_IF_ERROR(RunChunks((n + kChunkRows - 1) / kChunkRows, static_cast<size_t>(threads - 1), interrupted,
                                  [&](size_t, uint64_t chunk) {
      std::vector<float> scratch;
      for (size_t i = chunk * kChunkRows; i < std::min<size_t>(n, (chunk + 1) * kChunkRows); ++i)
        owner[i] = c.Assign(sample + i * dim, &scratch);
      return Status::Ok();
    }));
    MoveToMeans(sample, all, owner, dim, c.centroids_.data(), c.half_norms_.data(), c.size());
  }
  progress(steps, steps);
  *out = std::move(c);
  return Status::Ok();
}

}  // namespace pymemstore
