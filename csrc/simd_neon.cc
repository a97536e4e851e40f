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

void DotCodesNeon(const int8_t* codes, size_t padded_dim, const uint32_t* rows, size_t n, const int16_t* q,
                  int32_t* out) {
  for (size_t r = 0; r < n; ++r) {
    const int8_t* a = codes + rows[r] * padded_dim;
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

const Kernels kTable = {"neon", CanonicalDotNeon, DotRowsNeon, ScanGroupsNeon, DotCodesNeon};

}  // namespace

const Kernels* NeonKernels() { return &kTable; }

}  // namespace pymemstore

#else

namespace pymemstore {
const Kernels* NeonKernels() { return nullptr; }
}  // namespace pymemstore

#endif
