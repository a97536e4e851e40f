#include "scan_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "distance.h"
#include "scan_math.h"

namespace pymemstore {
namespace {

constexpr uint64_t kRebuildGrowth = 4;
uint8_t* AllocateZeroed(size_t bytes) {
  const size_t padded = std::max<size_t>((bytes + 63) / 64 * 64, 64);
  void* p = std::aligned_alloc(64, padded);
  if (p == nullptr) throw std::bad_alloc();  // ExactScan turns it into a Status
  std::memset(p, 0, padded);
  return static_cast<uint8_t*>(p);
}

// The squared error of Quantise, roughly: to choose a scale by.
float RoughError(const float* v, size_t n, float scale, int limit) {
  const float inverse = 1 / scale, cut = static_cast<float>(limit);
  float sum[8] = {};
  for (size_t i = 0; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) {
      const float x = v[i + j] * inverse;
      const float e = x - std::min(std::max(Nearest(x), -cut), cut);
      sum[j] += e * e;
    }
  }
  return (((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]))) * scale * scale;
}

// A norm in units of kNormUnit, rounded up. Norms of unit vectors stay far below the largest, 65535 units.
uint32_t NormUnits(double norm) {
  return static_cast<uint32_t>(std::min(std::ceil(norm / kNormUnit * kUp), 65535.0));
}

class SegmentWriter {
 public:
  SegmentWriter(const ScanCodes& codes, uint32_t capacity, const ScanSegment* old)
      : basis_(*codes.basis), group_bytes_(GroupBytes(codes.basis->padded_k)), padded_dim_(codes.PaddedDim()) {
    const size_t groups = (capacity + kGroupRows - 1) / kGroupRows;
    segment_ = std::make_shared<ScanSegment>();
    segment_->stage1.reset(AllocateZeroed(groups * group_bytes_));
    segment_->stage2.reset(AllocateZeroed(capacity * padded_dim_));
    if (old != nullptr) {
      const size_t old_groups = (old->rows + kGroupRows - 1) / kGroupRows;
      std::memcpy(segment_->stage1.get(), old->stage1.get(), old_groups * group_bytes_);
      std::memcpy(segment_->stage2.get(), old->stage2.get(), old->rows * padded_dim_);
      segment_->scale2 = old->scale2;
      segment_->error2 = old->error2;
      segment_->rows = old->rows;
      segment_->max_code_norm = old->max_code_norm;
      segment_->max_norm = old->max_norm;
    }
    segment_->scale2.resize(capacity, 1);
    segment_->error2.resize(capacity, 0);
    y_.resize(basis_.padded_k);
    codes1_.resize(basis_.padded_k);
  }

  void Add(const float* v) {
    ScanSegment& s = *segment_;
    const uint32_t r = s.rows++;
    const size_t g = r / kGroupRows, lane = r % kGroupRows;
    const double norm = Norm(v, basis_.dim) * kUp;
    s.max_norm = std::max(s.max_norm, norm);

    basis_.Rotate(v, y_.data());
    const float scale = BestScale();
    double code_norm;
    const double error = Quantise(y_.data(), y_.size(), scale, kRowCodeMax, codes1_.data(), &code_norm);
    s.max_code_norm = std::max(s.max_code_norm, code_norm);
    uint8_t* block = s.stage1.get() + g * group_bytes_;
    for (size_t i = 0; i < codes1_.size(); ++i) {
      uint8_t* byte = block + i / 8 * 64 + lane * 4 + i % 4;
      const int code = codes1_[i] + kRowCodeMax + 1;
      *byte = static_cast<uint8_t>(i % 8 < 4 ? (*byte & 0xf0) | code : (*byte & 0x0f) | (code << 4));
    }
    uint8_t* tail = block + basis_.padded_k / 8 * 64;
    reinterpret_cast<float*>(tail)[lane] = scale;
    reinterpret_cast<uint32_t*>(tail)[kGroupRows + lane] =
        (NormUnits(RestNorm(basis_, norm, Norm(y_.data(), y_.size()))) << 16) |
        NormUnits(error + basis_.rotate_error * norm);

    s.scale2[r] = ScaleFor(v, basis_.dim, 127);
    s.error2[r] = RoundUp(Quantise(v, basis_.dim, s.scale2[r], 127,
                                   reinterpret_cast<int8_t*>(s.stage2.get()) + r * padded_dim_, &code_norm));
  }

  // A scale for y_'s codes: clipping the largest values may cost less than coarse steps.
  float BestScale() const {
    const float full = ScaleFor(y_.data(), y_.size(), kRowCodeMax);
    float best = full, best_error = HUGE_VALF;
    for (float clip : {1.0F, 0.8F, 0.65F, 0.5F, 0.4F}) {
      const float error = RoughError(y_.data(), y_.size(), full * clip, kRowCodeMax);
      if (error < best_error) {
        best_error = error;
        best = full * clip;
      }
    }
    return best;
  }

  std::shared_ptr<const ScanSegment> Take() { return std::move(segment_); }

 private:
  const ScanBasis& basis_;
  const size_t group_bytes_, padded_dim_;
  std::shared_ptr<ScanSegment> segment_;
  std::vector<float> y_;
  std::vector<int8_t> codes1_;
};

}  // namespace

CodedQuery CodeWholeQuery(const float* q, uint32_t dim) {
  CodedQuery out;
  out.norm = Norm(q, dim) * kUp;
  const size_t padded = (dim + 31) / 32 * 32;
  const int limit = static_cast<int>(std::clamp<int64_t>(
      std::numeric_limits<int32_t>::max() / (127 * static_cast<int64_t>(padded)), 1, 32767));
  const float scale2 = ScaleFor(q, dim, limit);
  out.scale2 = static_cast<double>(scale2);
  out.codes2.assign(padded, 0);
  double code_norm;
  out.slack2 = Quantise(q, dim, scale2, limit, out.codes2.data(), &code_norm);
  return out;
}

CodedQuery CodeQuery(const ScanBasis& b, const float* q) {
  CodedQuery out = CodeWholeQuery(q, b.dim);
  out.gram_error = b.gram_error;
  std::vector<float> z(b.padded_k);
  b.Rotate(q, z.data());
  const double z_norm = Norm(z.data(), z.size()) * kUp;
  const float scale1 = ScaleFor(z.data(), z.size(), kQueryCodeMax);
  out.scale1 = static_cast<double>(scale1);
  out.codes1.resize(b.padded_k);
  double code_norm;
  const double rotate_error = b.rotate_error * out.norm;
  out.slack1 = Quantise(z.data(), z.size(), scale1, kQueryCodeMax, out.codes1.data(), &code_norm) + rotate_error;
  for (int8_t c : out.codes1) out.offset1 += (kRowCodeMax + 1) * c;
  out.norm1 = z_norm + rotate_error;
  out.rest = RestNorm(b, out.norm, z_norm / kUp);
  return out;
}

ScanQuery CodedQuery::ForSegment(const ScanSegment& s, double tau) const {
  // 4e-6: the float32 steps of the kernel (five roundings of values below 2 for unit vectors, with headroom)
  // and the canonical score's own rounding.
  const double margin = slack1 * s.max_code_norm + gram_error * norm * s.max_norm +
                        4e-6 * (norm * s.max_norm + std::fabs(tau) + norm1);
  ScanQuery q;
  q.codes = codes1.data();
  q.offset = offset1;
  q.rest = RoundUp(rest / scale1 * kNormUnit * kUp);
  q.error = RoundUp(norm1 / scale1 * kNormUnit * kUp);
  q.threshold = RoundDown((tau - margin) / scale1);
  return q;
}

Status ExtendCodes(const RowView& view, const std::shared_ptr<const ScanCodes>& old,
                   const std::function<bool()>& interrupted, std::shared_ptr<const ScanCodes>* out) {
  auto codes = std::make_shared<ScanCodes>();
  if (old != nullptr && view.rows < kRebuildGrowth * old->basis->built_rows) {
    *codes = *old;
  } else {
    auto basis = std::make_shared<ScanBasis>();
    PMS_RETURN_IF_ERROR(BuildScanBasis(view, interrupted, basis.get()));
    codes->basis = std::move(basis);
  }
  while (codes->rows < view.rows) {
    if (interrupted && interrupted()) return Status::Interrupted();
    const uint64_t first = codes->rows / kSegmentRows * kSegmentRows;
    const uint64_t end = std::min<uint64_t>(first + kSegmentRows, view.rows);
    const bool partial = codes->rows > first;
    SegmentWriter writer(*codes, static_cast<uint32_t>(end - first), partial ? codes->segments.back().get() : nullptr);
    for (uint64_t i = codes->rows; i < end; ++i) writer.Add(view.row(i));
    if (partial) codes->segments.pop_back();
    codes->segments.push_back(writer.Take());
    codes->rows = end;
  }
  *out = std::move(codes);
  return Status::Ok();
}

}  // namespace pymemstore
