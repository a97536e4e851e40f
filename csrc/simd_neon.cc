// Kernels for 64-bit ARM with NEON (always there on it). No std template here.
#include "simd_kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

namespace pymemstore {
namespace {

double CanonicalDotNeon(const float* a, const float* b, size_t dim) {
  float64x2_t l01 = vdupq_n_f64(0), l23 = l01, l45 = l01, l67 = l01;
  size_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    const float32x4_t a0 = vld1q_f32(a + i), a1 = vld1q_f32(a + i + 4);
    const float32x4_t b0 = vld1q_f32(b + i), b1 = vld1q_f32(b + i + 4);
    // The product is exact in double, so the fused form rounds as multiply then add does.
    l01 = vfmaq_f64(l01, vcvt_f64_f32(vget_low_f32(a0)), vcvt_f64_f32(vget_low_f32(b0)));
    l23 = vfmaq_f64(l23, vcvt_high_f64_f32(a0), vcvt_high_f64_f32(b0));
    l45 = vfmaq_f64(l45, vcvt_f64_f32(vget_low_f32(a1)), vcvt_f64_f32(vget_low_f32(b1)));
    l67 = vfmaq_f64(l67, vcvt_high_f64_f32(a1), vcvt_high_f64_f32(b1));
  }
  double l[8];
  vst1q_f64(l, l01);
  vst1q_f64(l + 2, l23);
  vst1q_f64(l + 4, l45);
  vst1q_f64(l + 6, l67);
  for (size_t j = 0; i < dim; ++i, ++j) l[j] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

void DotRowsNeon(const uint8_t* base, size_t stride, size_t n, const float* q, size_t dim, float* out) {
  for (size_t r = 0; r < n; ++r) {
    const float* a = reinterpret_cast<const float*>(base + r * stride);
    float32x4_t s0 = vdupq_n_f32(0), s1 = s0, s2 = s0, s3 = s0;
    size_t i = 0;
    for (; i + 16 <= dim; i += 16) {
      s0 = vfmaq_f32(s0, vld1q_f32(q + i), vld1q_f32(a + i));
      s1 = vfmaq_f32(s1, vld1q_f32(q + i + 4), vld1q_f32(a + i + 4));
      s2 = vfmaq_f32(s2, vld1q_f32(q + i + 8), vld1q_f32(a + i + 8));
      s3 = vfmaq_f32(s3, vld1q_f32(q + i + 12), vld1q_f32(a + i + 12));
    }
    float sum = vaddvq_f32(vaddq_f32(vaddq_f32(s0, s1), vaddq_f32(s2, s3)));
    for (; i < dim; ++i) sum += q[i] * a[i];
    out[r] = sum;
  }
}

// Four rows' decisions from two accumulators that hold pairs of partial sums of two rows each; `tail` points at
// the rows' scales.
inline unsigned Decide4(int32x4_t acc01, int32x4_t acc23, const ScanQuery& q, const uint8_t* tail) {
  const int32x4_t dot = vsubq_s32(vpaddq_s32(acc01, acc23), vdupq_n_s32(q.offset));
  const uint32x4_t norms = vld1q_u32(reinterpret_cast<const uint32_t*>(tail + kGroupRows * sizeof(float)));
  const float32x4_t rest = vcvtq_f32_u32(vshrq_n_u32(norms, 16));
  const float32x4_t error = vcvtq_f32_u32(vandq_u32(norms, vdupq_n_u32(0xffff)));
  const float32x4_t product = vmulq_f32(vcvtq_f32_s32(dot), vld1q_f32(reinterpret_cast<const float*>(tail)));
  const float32x4_t with_rest = vaddq_f32(product, vmulq_f32(vdupq_n_f32(q.rest), rest));
  const float32x4_t bound = vaddq_f32(with_rest, vmulq_f32(vdupq_n_f32(q.error), error));
  const uint32x4_t pass = vcgeq_f32(bound, vdupq_n_f32(q.threshold));
  const uint32_t bits[4] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(pass, vld1q_u32(bits)));
}

inline int8x8_t Twice4(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return vreinterpret_s8_s32(vdup_n_s32(x));
}

void ScanGroupsNeon(const uint8_t* blocks, size_t groups, size_t k, const ScanQuery* queries, size_t nq,
                    uint16_t* masks) {
  const size_t columns = k / 8;
  const uint8x16_t low = vdupq_n_u8(15);
  for (size_t g = 0; g < groups; ++g) {
    const uint8_t* block = blocks + g * GroupBytes(k);
    for (size_t j = 0; j < nq; ++j) {
      const ScanQuery& q = queries[j];
      int32x4_t acc[8];
      for (int a = 0; a < 8; ++a) acc[a] = vdupq_n_s32(0);
      for (size_t t = 0; t < columns; ++t) {
        const int8x8_t q_low = Twice4(q.codes + t * 8), q_high = Twice4(q.codes + t * 8 + 4);
        for (int a = 0; a < 4; ++a) {
          const uint8x16_t x = vld1q_u8(block + t * 64 + 16 * a);
          const int8x16_t lo = vreinterpretq_s8_u8(vandq_u8(x, low)), hi = vreinterpretq_s8_u8(vshrq_n_u8(x, 4));
          const int16x8_t first = vmlal_s8(vmull_s8(vget_low_s8(lo), q_low), vget_low_s8(hi), q_high);
          const int16x8_t second = vmlal_s8(vmull_s8(vget_high_s8(lo), q_low), vget_high_s8(hi), q_high);
          acc[2 * a] = vpadalq_s16(acc[2 * a], first);
          acc[2 * a + 1] = vpadalq_s16(acc[2 * a + 1], second);
        }
      }
      unsigned mask = 0;
      for (int a = 0; a < 4; ++a) {
        mask |= Decide4(acc[2 * a], acc[2 * a + 1], q, block + columns * 64 + 16 * a) << (4 * a);
      }
      masks[g * nq + j] = static_cast<uint16_t>(mask);
    }
  }
}

// The dots of a group's rows with a stage's weights, as 2 dot - offset: four vectors of four rows.
inline void StageDots(const uint8_t* group, const StageQuery& q, float32x4_t* out) {
  const size_t lines = StageLines(q.bits), parts = static_cast<size_t>(8 / q.bits);
  const uint8x16_t low = vdupq_n_u8(static_cast<uint8_t>((1 << q.bits) - 1));
  const int8x16_t shift = vdupq_n_s8(static_cast<int8_t>(-q.bits));
  for (size_t quarter = 0; quarter < 4; ++quarter) {
    int32x4_t acc01 = vdupq_n_s32(0), acc23 = acc01;  // pairs of partial sums of two rows each
    for (size_t l = 0; l < lines; ++l) {
      uint8x16_t x = vld1q_u8(group + l * 64 + quarter * 16);
      for (size_t s = 0; s < parts; ++s) {
        const int8x8_t w = Twice4(q.codes + (l * parts + s) * 4);
        const int8x16_t c = vreinterpretq_s8_u8(vandq_u8(x, low));
        acc01 = vpadalq_s16(acc01, vmull_s8(vget_low_s8(c), w));
        acc23 = vpadalq_s16(acc23, vmull_s8(vget_high_s8(c), w));
        x = vshlq_u8(x, shift);
      }
    }
    const int32x4_t dot = vpaddq_s32(acc01, acc23);
    out[quarter] = vcvtq_f32_s32(vsubq_s32(vaddq_s32(dot, dot), vdupq_n_s32(q.offset)));
  }
}

inline float32x4_t Bytes4(const uint8_t* p) {
  uint32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  const uint16x8_t wide = vmovl_u8(vcreate_u8(x));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}

inline unsigned Bits4(float32x4_t bound, float threshold) {
  const uint32_t bits[4] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vcgeq_f32(bound, vdupq_n_f32(threshold)), vld1q_u32(bits)));
}

void ScanStageNeon(const uint8_t* stage, const uint32_t* list, const float* bases, size_t n, const StageQuery& q,
                   float threshold, uint16_t* masks) {
  for (size_t i = 0; i < n; ++i) {
    const uint8_t* group = stage + list[i] * StageBytes(q.bits);
    const uint8_t* tail = group + StageLines(q.bits) * 64;
    float32x4_t dots[4];
    StageDots(group, q, dots);
    unsigned mask = 0;
    for (size_t k = 0; k < 4; ++k) {
      const float32x4_t product = vmulq_f32(vdupq_n_f32(q.scale), dots[k]);
      const float32x4_t error = vmulq_f32(vdupq_n_f32(q.error), Bytes4(tail + 4 * k));
      const float32x4_t rest = vmulq_f32(vdupq_n_f32(q.rest), Bytes4(tail + kGroupRows + 4 * k));
      const float32x4_t with_error = vaddq_f32(vaddq_f32(vdupq_n_f32(bases[i]), product), error);
      mask |= Bits4(vaddq_f32(with_error, rest), threshold) << (4 * k);
    }
    masks[i] = static_cast<uint16_t>(mask);
  }
}

void ScanStagesNeon(const uint8_t* first, const uint8_t* second, const uint32_t* list, const float* bases,
                    size_t n, const StageQuery& q1, const StageQuery& q2, float threshold, uint16_t* masks) {
  for (size_t i = 0; i < n; ++i) {
    const size_t g = list[i];
    const uint8_t *a = first + g * StageBytes(q1.bits), *b = second + g * StageBytes(q2.bits);
    const uint8_t *tail1 = a + StageLines(q1.bits) * 64, *tail2 = b + StageLines(q2.bits) * 64;
    float32x4_t dots1[4], dots2[4];
    StageDots(a, q1, dots1);
    StageDots(b, q2, dots2);
    unsigned mask = 0;
    for (size_t k = 0; k < 4; ++k) {
      const float32x4_t product1 = vmulq_f32(vdupq_n_f32(q1.scale), dots1[k]);
      const float32x4_t product2 = vmulq_f32(vdupq_n_f32(q2.scale), dots2[k]);
      const float32x4_t error1 = vmulq_f32(vdupq_n_f32(q1.error), Bytes4(tail1 + 4 * k));
      const float32x4_t error2 = vmulq_f32(vdupq_n_f32(q2.error), Bytes4(tail2 + 4 * k));
      const float32x4_t rest = vmulq_f32(vdupq_n_f32(q2.rest), Bytes4(tail2 + kGroupRows + 4 * k));
      const float32x4_t with_first = vaddq_f32(vaddq_f32(vdupq_n_f32(bases[i]), product1), error1);
      const float32x4_t with_second = vaddq_f32(vaddq_f32(with_first, product2), error2);
      mask |= Bits4(vaddq_f32(with_second, rest), threshold) << (4 * k);
    }
    masks[i] = static_cast<uint16_t>(mask);
  }
}

void DotCodesNeon(const int8_t* codes, size_t stride, size_t padded_dim, const uint32_t* rows, size_t n,
                    const int16_t* q, int32_t* out) {
  for (size_t r = 0; r < n; ++r) {
    const int8_t* a = codes + rows[r] * stride;
    int32x4_t s0 = vdupq_n_s32(0), s1 = s0;
    for (size_t i = 0; i < padded_dim; i += 16) {
      const int8x16_t x = vld1q_s8(a + i);
      const int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_s8(vget_high_s8(x));
      const int16x8_t ql = vld1q_s16(q + i), qh = vld1q_s16(q + i + 8);
      s0 = vmlal_s16(s0, vget_low_s16(lo), vget_low_s16(ql));
      s1 = vmlal_s16(s1, vget_high_s16(lo), vget_high_s16(ql));
      s0 = vmlal_s16(s0, vget_low_s16(hi), vget_low_s16(qh));
      s1 = vmlal_s16(s1, vget_high_s16(hi), vget_high_s16(qh));
    }
    out[r] = vaddvq_s32(vaddq_s32(s0, s1));
  }
}

int32_t DotInt8Neon(const int8_t* a, const int8_t* b, size_t n) {
  int32x4_t sum = vdupq_n_s32(0);
  for (size_t i = 0; i < n; i += 16) {
    const int8x16_t x = vld1q_s8(a + i), y = vld1q_s8(b + i);
    sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(x), vget_low_s8(y)));
    sum = vpadalq_s16(sum, vmull_s8(vget_high_s8(x), vget_high_s8(y)));
  }
  return vaddvq_s32(sum);
}

const Kernels kTable = {"neon",        CanonicalDotNeon, DotRowsNeon,  ScanGroupsNeon,
                        ScanStageNeon, ScanStagesNeon,   nullptr, DotCodesNeon, DotInt8Neon};

}  // namespace

const Kernels* NeonKernels() { return &kTable; }

}  // namespace pymemstore

#else

namespace pymemstore {
const Kernels* NeonKernels() { return nullptr; }
}  // namespace pymemstore

#endif
