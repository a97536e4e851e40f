// Codes of a vector file's first rows, sealed in a derived file: residuals to cluster centroids, in cluster order,
// with staged upper bounds on the canonical score. The proof is in docs/exact_scan.md; names here follow it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "derived_file.h"
#include "exact_scan.h"
#include "scan_basis.h"
#include "scan_codes.h"

namespace pymemstore {

// Fewer rows are not worth sealing: the scan of the newest rows takes them.
constexpr uint64_t kMinSealedRows = 4096;
// Rows of a larger norm, or of values that are no numbers, are damaged (check() tells): codes and graph leave them out,
// so that they cost no other row its bounds.
constexpr double kMostRowNorm = 1.01;

// Sections of a codes file, in order.
enum CodesSection : size_t {
  kCodesMeta, kCodesAxes, kCodesSteps, kCodesCentroids, kCodesCentroidScales, kCodesClusters, kCodesRadii, kCodesRows,
  kCodesStage1, kCodesStage2, kCodesWhole, kCodesSections
};

// The first section, as it is stored (little-endian, no padding).
struct CodesMeta {
  uint32_t clusters = 0, groups = 0, axes = 0, identity = 0;
  int32_t bits1 = 0, bits2 = 0;  // bits2 0: one stage
  double gram_error = 0, rotate_error = 0;
  double max_residual = 0;      // max |r|
  double max_centroid = 0;      // max |c|
  double max_norm = 0;          // max |v|
  double code_norm1 = 0, code_norm2 = 0;    // max |u - mid| of a stage
  double value_norm1 = 0, value_norm2 = 0;  // max |y^| of a stage
  float error1_unit = 0, rest1_unit = 0, error2_unit = 0, rest2_unit = 0;  // of the bytes
};
static_assert(sizeof(CodesMeta) == 112, "stored as it is");

// An int8 row: the codes, zero-padded, then scale and error (float32), zero-padded to a multiple of 8 bytes.
inline size_t WholeStride(uint32_t dim) { return (static_cast<size_t>(dim) + 31) / 32 * 32 + 8; }

class SealedCodes {
 public:
  // As DerivedFile::Open; also Corruption when the sections don't fit each other.
  static Result<std::shared_ptr<const SealedCodes>> Open(const std::string& path, const DerivedStamp& stamp);

  uint64_t rows() const { return file_->rows(); }
  const DerivedFile& file() const { return *file_; }
  const CodesMeta& meta() const { return meta_; }
  uint32_t dim() const { return basis_.dim; }

  // Puts into (*out)[i] the rows below `view.rows` that reach taus[i], ascending, for each of n queries. `softness`
  // 1: all of them, proven. Below 1 the terms for what the codes leave out are multiplied by it, or by what keeps every
  // row within reach of its own vector, if that is more: faster, and approximate. Threads, interruption and errors as in ExactScan.
  Status WithinThreshold(const RowView& view, const float* queries, size_t n, const double* taus, double softness,
                         int threads, const std::function<bool()>& interrupted,
                         std::vector<std::vector<ScoredRow>>* out, ScanStats* stats) const;

  // Whether the int8 row is that of v, which must be the row's vector.
  bool IsOf(uint64_t row, const float* v) const;
  const int8_t* whole(uint64_t row) const { return whole_ + row * WholeStride(dim()); }
  const int8_t* whole_rows() const { return whole_; }

 private:
  friend class SealedWorker;
  explicit SealedCodes(std::shared_ptr<const DerivedFile> file) : file_(std::move(file)) {}
  Status Load();

  std::shared_ptr<const DerivedFile> file_;
  CodesMeta meta_;
  ScanBasis basis_;
  double slack_ = 0;                       // those terms are at most this times |q|
  const float* steps_ = nullptr;           // [axes]
  const int8_t* centroids_ = nullptr;      // [clusters][padded dim]
  const float* centroid_scales_ = nullptr;
  const uint32_t* clusters_ = nullptr;     // [clusters + 1]: first groups
  const float* radii_ = nullptr;           // [groups]: max |r|, falling within a cluster
  std::vector<float> widest_;              // [clusters]: the first group's radius
  const uint32_t* rows_ = nullptr;         // [groups][16]; kNoRow: padding
  const uint8_t* stage1_ = nullptr;
  const uint8_t* stage2_ = nullptr;
  const int8_t* whole_ = nullptr;          // [rows][WholeStride]
};

constexpr uint32_t kNoRow = 0xffffffffu;

// Makes the codes file of the first view.rows rows (at least kMinSealedRows) and puts it in place of what stands
// there. Phases told to `progress`: "clustering", "coding", "sealing". Interrupted or failed: nothing changes.
Status SealCodes(const RowView& view, const std::string& path, const DerivedStamp& stamp, int threads,
                 const std::function<void(const char*, uint64_t, uint64_t)>& progress,
                 const std::function<bool()>& interrupted);

}  // namespace pymemstore
