// Kernels for AVX2 and FMA. Compiled with those flags: no std template here.
#include "simd_kernels.h"

#if defined(__x86_64__) && defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

namespace pymemstore {
namespace {

constexpr size_t kAhead = 8;  // rows that dot_codes fetches ahead

double CanonicalDotAvx2(const float* a, const float* b, size_t dim) {
  __m256d lo = _mm256_setzero_pd(), hi = lo;
  size_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    // The product is exact in double, so the fused form rounds as multiply then add does.
    lo = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(a + i)), _mm256_cvtps_pd(_mm_loadu_ps(b + i)), lo);
    hi = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(a + i + 4)), _mm256_cvtps_pd(_mm_loadu_ps(b + i + 4)), hi);
  }
  double l[8];
  _mm256_storeu_pd(l, lo);
  _mm256_storeu_pd(l + 4, hi);
  for (size_t j = 0; i < dim; ++i, ++j) l[j] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

inline float Sum(__m256 v) {
  const __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 t = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps(t, t, 1)));
}

void DotRowsAvx2(const uint8_t* base, size_t stride, size_t n, const float* q, size_t dim, float* out) {
  size_t r = 0;
  for (; r + 4 <= n; r += 4) {
    const float* a = reinterpret_cast<const float*>(base + r * stride);
    const float* b = reinterpret_cast<const float*>(base + (r + 1) * stride);
    const float* c = reinterpret_cast<const float*>(base + (r + 2) * stride);
    const float* d = reinterpret_cast<const float*>(base + (r + 3) * stride);
    __m256 sa = _mm256_setzero_ps(), sb = sa, sc = sa, sd = sa;
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
      const __m256 x = _mm256_loadu_ps(q + i);
      sa = _mm256_fmadd_ps(x, _mm256_loadu_ps(a + i), sa);
      sb = _mm256_fmadd_ps(x, _mm256_loadu_ps(b + i), sb);
      sc = _mm256_fmadd_ps(x, _mm256_loadu_ps(c + i), sc);
      sd = _mm256_fmadd_ps(x, _mm256_loadu_ps(d + i), sd);
    }
    float ta = Sum(sa), tb = Sum(sb), tc = Sum(sc), td = Sum(sd);
    for (; i < dim; ++i) {
      ta += q[i] * a[i];
      tb += q[i] * b[i];
      tc += q[i] * c[i];
      td += q[i] * d[i];
    }
    out[r] = ta;
    out[r + 1] = tb;
    out[r + 2] = tc;
    out[r + 3] = td;
  }
  for (; r < n; ++r) {
    const float* a = reinterpret_cast<const float*>(base + r * stride);
    __m256 sa = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) sa = _mm256_fmadd_ps(_mm256_loadu_ps(q + i), _mm256_loadu_ps(a + i), sa);
    float ta = Sum(sa);
    for (; i < dim; ++i) ta += q[i] * a[i];
    out[r] = ta;
  }
}

inline __m256i Broadcast4(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return _mm256_set1_epi32(x);
}

// 16-bit sums of the products of 8 coordinates with the query's.
inline __m256i Products(__m256i x, __m256i low, __m256i q_low, __m256i q_high) {
  return _mm256_add_epi16(_mm256_maddubs_epi16(_mm256_and_si256(x, low), q_low),
                          _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(x, 4), low), q_high));
}

inline __m256i Widen(__m256i acc, __m256i sums) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
}

// Eight rows' decisions; `tail` points at their scales.
inline unsigned Decide8(__m256i dot, const ScanQuery& q, const uint8_t* tail) {
  const __m256i norms =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tail + kGroupRows * sizeof(float)));
  const __m256 rest = _mm256_cvtepi32_ps(_mm256_srli_epi32(norms, 16));
  const __m256 error = _mm256_cvtepi32_ps(_mm256_and_si256(norms, _mm256_set1_epi32(0xffff)));
  const __m256 d = _mm256_cvtepi32_ps(_mm256_sub_epi32(dot, _mm256_set1_epi32(q.offset)));
  const __m256 product = _mm256_mul_ps(d, _mm256_loadu_ps(reinterpret_cast<const float*>(tail)));
  const __m256 with_rest = _mm256_add_ps(product, _mm256_mul_ps(_mm256_set1_ps(q.rest), rest));
  const __m256 bound = _mm256_add_ps(with_rest, _mm256_mul_ps(_mm256_set1_ps(q.error), error));
  return static_cast<unsigned>(
      _mm256_movemask_ps(_mm256_cmp_ps(bound, _mm256_set1_ps(q.threshold), _CMP_GE_OQ)));
}

void ScanGroupsAvx2(const uint8_t* blocks, size_t groups, size_t k, const ScanQuery* queries, size_t nq,
                    uint16_t* masks) {
  const size_t columns = k / 8;
  const __m256i low = _mm256_set1_epi8(15);
  for (size_t g = 0; g < groups; ++g) {
    const uint8_t* block = blocks + g * GroupBytes(k);
    for (size_t j = 0; j < nq; ++j) {
      const int8_t* codes = queries[j].codes;
      __m256i a = _mm256_setzero_si256(), b = a;
      for (size_t t = 0; t < columns;) {
        // Up to 4 columns add 8 pairs of products, which 16 bits hold; see kQueryCodeMax.
        __m256i sa = _mm256_setzero_si256(), sb = sa;
        for (const size_t end = t + 4 < columns ? t + 4 : columns; t < end; ++t) {
          const uint8_t* p = block + t * 64;
          const __m256i q_low = Broadcast4(codes + t * 8), q_high = Broadcast4(codes + t * 8 + 4);
          const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
          const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
          sa = _mm256_add_epi16(sa, Products(x, low, q_low, q_high));
          sb = _mm256_add_epi16(sb, Products(y, low, q_low, q_high));
        }
        a = Widen(a, sa);
        b = Widen(b, sb);
      }
      const uint8_t* tail = block + columns * 64;
      const unsigned first = Decide8(a, queries[j], tail);
      const unsigned second = Decide8(b, queries[j], tail + 8 * sizeof(float));
      masks[g * nq + j] = static_cast<uint16_t>(first | (second << 8));
    }
  }
}

// The dots of rows 8 half .. 8 half + 7 of a group with a stage's weights, as 2 dot - offset.
inline __m256 StageDots(const uint8_t* group, size_t half, const StageQuery& q) {
  const size_t lines = StageLines(q.bits), parts = static_cast<size_t>(8 / q.bits);
  const __m256i low = _mm256_set1_epi8(static_cast<char>((1 << q.bits) - 1));
  __m256i acc = _mm256_setzero_si256();
  // 16 bits hold the sums of 8 pairs of products: 8 * 2 * 15 * 127.
  for (size_t l = 0; l < lines;) {
    __m256i sums = _mm256_setzero_si256();
    for (size_t used = 0; used < 8; used += parts, ++l) {
      __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group + l * 64 + half * 32));
      for (size_t s = 0; s < parts; ++s) {
        const __m256i w = Broadcast4(q.codes + (l * parts + s) * 4);
        sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(_mm256_and_si256(x, low), w));
        x = _mm256_srli_epi16(x, q.bits);
      }
    }
    acc = Widen(acc, sums);
  }
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_add_epi32(acc, acc), _mm256_set1_epi32(q.offset)));
}

inline __m256 Bytes8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

void ScanStageAvx2(const uint8_t* stage, const uint32_t* list, const float* bases, size_t n, const StageQuery& q,
                   float threshold, uint16_t* masks) {
  const size_t lines = StageLines(q.bits) * 64;
  for (size_t i = 0; i < n; ++i) {
    const uint8_t* group = stage + list[i] * StageBytes(q.bits);
    unsigned mask = 0;
    for (size_t half = 0; half < 2; ++half) {
      const uint8_t* tail = group + lines + 8 * half;
      const __m256 product = _mm256_mul_ps(_mm256_set1_ps(q.scale), StageDots(group, half, q));
      const __m256 error = _mm256_mul_ps(_mm256_set1_ps(q.error), Bytes8(tail));
      const __m256 rest = _mm256_mul_ps(_mm256_set1_ps(q.rest), Bytes8(tail + kGroupRows));
      const __m256 with_error = _mm256_add_ps(_mm256_add_ps(_mm256_set1_ps(bases[i]), product), error);
      const __m256 pass = _mm256_cmp_ps(_mm256_add_ps(with_error, rest), _mm256_set1_ps(threshold), _CMP_GE_OQ);
      mask |= static_cast<unsigned>(_mm256_movemask_ps(pass)) << (8 * half);
    }
    masks[i] = static_cast<uint16_t>(mask);
  }
}

void ScanStagesAvx2(const uint8_t* first, const uint8_t* second, const uint32_t* list, const float* bases,
                    size_t n, const StageQuery& q1, const StageQuery& q2, float threshold, uint16_t* masks) {
  const size_t lines1 = StageLines(q1.bits) * 64, lines2 = StageLines(q2.bits) * 64;
  for (size_t i = 0; i < n; ++i) {
    const size_t g = list[i];
    const uint8_t *a = first + g * StageBytes(q1.bits), *b = second + g * StageBytes(q2.bits);
    unsigned mask = 0;
    for (size_t half = 0; half < 2; ++half) {
      const uint8_t *tail1 = a + lines1 + 8 * half, *tail2 = b + lines2 + 8 * half;
      const __m256 product1 = _mm256_mul_ps(_mm256_set1_ps(q1.scale), StageDots(a, half, q1));
      const __m256 product2 = _mm256_mul_ps(_mm256_set1_ps(q2.scale), StageDots(b, half, q2));
      const __m256 error1 = _mm256_mul_ps(_mm256_set1_ps(q1.error), Bytes8(tail1));
      const __m256 error2 = _mm256_mul_ps(_mm256_set1_ps(q2.error), Bytes8(tail2));
      const __m256 rest = _mm256_mul_ps(_mm256_set1_ps(q2.rest), Bytes8(tail2 + kGroupRows));
      const __m256 with_first = _mm256_add_ps(_mm256_add_ps(_mm256_set1_ps(bases[i]), product1), error1);
      const __m256 with_second = _mm256_add_ps(_mm256_add_ps(with_first, product2), error2);
      const __m256 pass = _mm256_cmp_ps(_mm256_add_ps(with_second, rest), _mm256_set1_ps(threshold), _CMP_GE_OQ);
      mask |= static_cast<unsigned>(_mm256_movemask_ps(pass)) << (8 * half);
    }
    masks[i] = static_cast<uint16_t>(mask);
  }
}

void DotCodesAvx2(const int8_t* codes, size_t stride, size_t padded_dim, const uint32_t* rows, size_t n,
                    const int16_t* q, int32_t* out) {
  for (size_t r = 0; r < n; ++r) {
    if (r + kAhead < n) {
      const int8_t* next = codes + rows[r + kAhead] * stride;
      for (size_t i = 0; i < padded_dim; i += 64) _mm_prefetch(next + i, _MM_HINT_T0);
    }
    const int8_t* a = codes + rows[r] * stride;
    __m256i s0 = _mm256_setzero_si256(), s1 = s0;
    for (size_t i = 0; i < padded_dim; i += 32) {
      const __m256i lo = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i)));
      const __m256i hi = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i + 16)));
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + i));
      const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + i + 16));
      s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(lo, x));
      s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(hi, y));
    }
    const __m256i s = _mm256_add_epi32(s0, s1);
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    out[r] = _mm_cvtsi128_si32(t);
  }
}

int32_t DotInt8Avx2(const int8_t* a, const int8_t* b, size_t n) {
  __m256i sum = _mm256_setzero_si256();
  for (size_t i = 0; i < n; i += 16) {
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i)));
    const __m256i y = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i)));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, y));
  }
  const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  const __m128i quarter = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0xb1)));
}

const Kernels kTable = {"avx2",        CanonicalDotAvx2, DotRowsAvx2,  ScanGroupsAvx2,
                        ScanStageAvx2, ScanStagesAvx2,   nullptr, DotCodesAvx2, DotInt8Avx2};

}  // namespace

const Kernels* Avx2Kernels() { return &kTable; }

}  // namespace pymemstore

#else

namespace pymemstore {
const Kernels* Avx2Kernels() { return nullptr; }
}  // namespace pymemstore

#endif
