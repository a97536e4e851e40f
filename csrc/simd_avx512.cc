// Kernels for AVX512 F, BW, VL, DQ and VNNI. Compiled with those flags: no std template here.
#include "simd_kernels.h"

#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__) && defined(__AVX512VNNI__)

#include <immintrin.h>

namespace pymemstore {
namespace {

constexpr size_t kAhead = 8;  // rows that dot_codes fetches ahead

double CanonicalDotAvx512(const float* a, const float* b, size_t dim) {
  __m512d acc = _mm512_setzero_pd();
  size_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    // The product is exact in double, so the fused form rounds as multiply then add does.
    acc = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_loadu_ps(a + i)), _mm512_cvtps_pd(_mm256_loadu_ps(b + i)), acc);
  }
  if (i < dim) {
    const __mmask8 m = static_cast<__mmask8>((1u << (dim - i)) - 1);
    acc = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_maskz_loadu_ps(m, a + i)),
                          _mm512_cvtps_pd(_mm256_maskz_loadu_ps(m, b + i)), acc);
  }
  double l[8];
  _mm512_storeu_pd(l, acc);
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

void DotRowsAvx512(const uint8_t* base, size_t stride, size_t n, const float* q, size_t dim, float* out) {
  const size_t whole = dim / 16 * 16;
  const __mmask16 m = static_cast<__mmask16>((1u << (dim - whole)) - 1);
  size_t r = 0;
  for (; r + 4 <= n; r += 4) {
    const float* a = reinterpret_cast<const float*>(base + r * stride);
    const float* b = reinterpret_cast<const float*>(base + (r + 1) * stride);
    const float* c = reinterpret_cast<const float*>(base + (r + 2) * stride);
    const float* d = reinterpret_cast<const float*>(base + (r + 3) * stride);
    __m512 sa = _mm512_setzero_ps(), sb = sa, sc = sa, sd = sa;
    for (size_t i = 0; i < whole; i += 16) {
      const __m512 x = _mm512_loadu_ps(q + i);
      sa = _mm512_fmadd_ps(x, _mm512_loadu_ps(a + i), sa);
      sb = _mm512_fmadd_ps(x, _mm512_loadu_ps(b + i), sb);
      sc = _mm512_fmadd_ps(x, _mm512_loadu_ps(c + i), sc);
      sd = _mm512_fmadd_ps(x, _mm512_loadu_ps(d + i), sd);
    }
    if (m != 0) {
      const __m512 x = _mm512_maskz_loadu_ps(m, q + whole);
      sa = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(m, a + whole), sa);
      sb = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(m, b + whole), sb);
      sc = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(m, c + whole), sc);
      sd = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(m, d + whole), sd);
    }
    out[r] = _mm512_reduce_add_ps(sa);
    out[r + 1] = _mm512_reduce_add_ps(sb);
    out[r + 2] = _mm512_reduce_add_ps(sc);
    out[r + 3] = _mm512_reduce_add_ps(sd);
  }
  for (; r < n; ++r) {
    const float* a = reinterpret_cast<const float*>(base + r * stride);
    __m512 sa = _mm512_setzero_ps();
    for (size_t i = 0; i < whole; i += 16) {
      sa = _mm512_fmadd_ps(_mm512_loadu_ps(q + i), _mm512_loadu_ps(a + i), sa);
    }
    if (m != 0) {
      sa = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, q + whole), _mm512_maskz_loadu_ps(m, a + whole), sa);
    }
    out[r] = _mm512_reduce_add_ps(sa);
  }
}

inline __m512i Broadcast4(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return _mm512_set1_epi32(x);
}

struct GroupTail {
  __m512 scale, rest, error;
};

inline GroupTail LoadTail(const uint8_t* tail) {
  const __m512i norms = _mm512_loadu_si512(tail + kGroupRows * sizeof(float));
  return {_mm512_loadu_ps(tail), _mm512_cvtepi32_ps(_mm512_srli_epi32(norms, 16)),
          _mm512_cvtepi32_ps(_mm512_and_si512(norms, _mm512_set1_epi32(0xffff)))};
}

inline uint16_t Decide(__m512i dot, const ScanQuery& q, const GroupTail& g) {
  const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), g.scale);
  const __m512 with_rest = _mm512_add_ps(product, _mm512_mul_ps(_mm512_set1_ps(q.rest), g.rest));
  const __m512 bound = _mm512_add_ps(with_rest, _mm512_mul_ps(_mm512_set1_ps(q.error), g.error));
  return static_cast<uint16_t>(_mm512_cmp_ps_mask(bound, _mm512_set1_ps(q.threshold), _CMP_GE_OQ));
}

inline __m512i Start(const ScanQuery& q) { return _mm512_set1_epi32(-q.offset); }

inline __m512i Add8(__m512i acc, __m512i lo, __m512i hi, const int8_t* codes) {
  return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(acc, lo, Broadcast4(codes)), hi, Broadcast4(codes + 4));
}

void ScanGroupsAvx512(const uint8_t* blocks, size_t groups, size_t k, const ScanQuery* queries, size_t nq,
                      uint16_t* masks) {
  const size_t columns = k / 8;
  const __m512i low = _mm512_set1_epi8(15);
  if (nq == 8) {
    const int8_t *c0 = queries[0].codes, *c1 = queries[1].codes, *c2 = queries[2].codes, *c3 = queries[3].codes,
                 *c4 = queries[4].codes, *c5 = queries[5].codes, *c6 = queries[6].codes, *c7 = queries[7].codes;
    for (size_t g = 0; g < groups; ++g) {
      const uint8_t* block = blocks + g * GroupBytes(k);
      __m512i a0 = Start(queries[0]), a1 = Start(queries[1]), a2 = Start(queries[2]), a3 = Start(queries[3]),
              a4 = Start(queries[4]), a5 = Start(queries[5]), a6 = Start(queries[6]), a7 = Start(queries[7]);
      for (size_t t = 0; t < columns; ++t) {
        const __m512i x = _mm512_loadu_si512(block + t * 64);
        const __m512i lo = _mm512_and_si512(x, low), hi = _mm512_and_si512(_mm512_srli_epi32(x, 4), low);
        a0 = Add8(a0, lo, hi, c0 + t * 8);
        a1 = Add8(a1, lo, hi, c1 + t * 8);
        a2 = Add8(a2, lo, hi, c2 + t * 8);
        a3 = Add8(a3, lo, hi, c3 + t * 8);
        a4 = Add8(a4, lo, hi, c4 + t * 8);
        a5 = Add8(a5, lo, hi, c5 + t * 8);
        a6 = Add8(a6, lo, hi, c6 + t * 8);
        a7 = Add8(a7, lo, hi, c7 + t * 8);
      }
      const GroupTail tail = LoadTail(block + columns * 64);
      uint16_t* mask = masks + g * 8;
      mask[0] = Decide(a0, queries[0], tail);
      mask[1] = Decide(a1, queries[1], tail);
      mask[2] = Decide(a2, queries[2], tail);
      mask[3] = Decide(a3, queries[3], tail);
      mask[4] = Decide(a4, queries[4], tail);
      mask[5] = Decide(a5, queries[5], tail);
      mask[6] = Decide(a6, queries[6], tail);
      mask[7] = Decide(a7, queries[7], tail);
    }
    return;
  }
  for (size_t g = 0; g < groups; ++g) {
    const uint8_t* block = blocks + g * GroupBytes(k);
    const GroupTail tail = LoadTail(block + columns * 64);
    for (size_t j = 0; j < nq; ++j) {
      const int8_t* c = queries[j].codes;
      __m512i a0 = Start(queries[j]), a1 = _mm512_setzero_si512();
      for (size_t t = 0; t < columns; ++t) {
        const __m512i x = _mm512_loadu_si512(block + t * 64);
        a0 = _mm512_dpbusd_epi32(a0, _mm512_and_si512(x, low), Broadcast4(c + t * 8));
        a1 = _mm512_dpbusd_epi32(a1, _mm512_and_si512(_mm512_srli_epi32(x, 4), low), Broadcast4(c + t * 8 + 4));
      }
      masks[g * nq + j] = Decide(_mm512_add_epi32(a0, a1), queries[j], tail);
    }
  }
}

// The 16 weights of a stage, each for four axes.
struct StageWeights {
  __m512i w[16];
};

inline StageWeights LoadWeights(const StageQuery& q) {
  StageWeights s;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) s.w[i] = Broadcast4(q.codes + 4 * i);
  return s;
}

// The 2 dot - offset of a group's rows.
inline __m512 Dots2(const uint8_t* group, const StageWeights& s, __m512i offset) {
  const __m512i low = _mm512_set1_epi8(3);
  __m512i a = _mm512_setzero_si512(), b = a;
#pragma GCC unroll 4
  for (int l = 0; l < 4; ++l) {
    const __m512i x = _mm512_loadu_si512(group + l * 64);
    a = _mm512_dpbusd_epi32(a, _mm512_and_si512(x, low), s.w[4 * l]);
    b = _mm512_dpbusd_epi32(b, _mm512_and_si512(_mm512_srli_epi32(x, 2), low), s.w[4 * l + 1]);
    a = _mm512_dpbusd_epi32(a, _mm512_and_si512(_mm512_srli_epi32(x, 4), low), s.w[4 * l + 2]);
    b = _mm512_dpbusd_epi32(b, _mm512_and_si512(_mm512_srli_epi32(x, 6), low), s.w[4 * l + 3]);
  }
  const __m512i dot = _mm512_add_epi32(a, b);
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_add_epi32(dot, dot), offset));
}

inline __m512 Dots4(const uint8_t* group, const StageWeights& s, __m512i offset) {
  const __m512i low = _mm512_set1_epi8(15);
  __m512i a = _mm512_setzero_si512(), b = a;
#pragma GCC unroll 8
  for (int l = 0; l < 8; ++l) {
    const __m512i x = _mm512_loadu_si512(group + l * 64);
    a = _mm512_dpbusd_epi32(a, _mm512_and_si512(x, low), s.w[2 * l]);
    b = _mm512_dpbusd_epi32(b, _mm512_and_si512(_mm512_srli_epi32(x, 4), low), s.w[2 * l + 1]);
  }
  const __m512i dot = _mm512_add_epi32(a, b);
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_add_epi32(dot, dot), offset));
}

inline __m512 Bytes16(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

constexpr size_t kGroupsAhead = 8;  // that are fetched ahead

inline void Fetch(const uint8_t* group, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) _mm_prefetch(reinterpret_cast<const char*>(group + at), _MM_HINT_T0);
}

// A loop for each number of bits: the one that is inlined in it is known.
#define PMS_SCAN_STAGE(DOTS, BITS)                                                                                  \
  for (size_t i = 0; i < n; ++i) {                                                                                  \
    const uint8_t* group = stage + list[i] * StageBytes(BITS);                                                      \
    if (i + kGroupsAhead < n) Fetch(stage + list[i + kGroupsAhead] * StageBytes(BITS), StageBytes(BITS));           \
    const uint8_t* tail = group + StageLines(BITS) * 64;                                                            \
    const __m512 with_dot = _mm512_add_ps(_mm512_set1_ps(bases[i]), _mm512_mul_ps(scale, DOTS(group, weights, offset))); \
    const __m512 with_error = _mm512_add_ps(with_dot, _mm512_mul_ps(error, Bytes16(tail)));                         \
    const __m512 bound = _mm512_add_ps(with_error, _mm512_mul_ps(rest, Bytes16(tail + kGroupRows)));                \
    masks[i] = static_cast<uint16_t>(_mm512_cmp_ps_mask(bound, least, _CMP_GE_OQ));                                 \
  }

void ScanStageAvx512(const uint8_t* stage, const uint32_t* list, const float* bases, size_t n, const StageQuery& q,
                     float threshold, uint16_t* masks) {
  const StageWeights weights = LoadWeights(q);
  const __m512 scale = _mm512_set1_ps(q.scale), error = _mm512_set1_ps(q.error), rest = _mm512_set1_ps(q.rest);
  const __m512 least = _mm512_set1_ps(threshold);
  const __m512i offset = _mm512_set1_epi32(q.offset);
  if (q.bits == 2) {
    PMS_SCAN_STAGE(Dots2, 2)
  } else {
    PMS_SCAN_STAGE(Dots4, 4)
  }
}
#undef PMS_SCAN_STAGE

inline __m512 StageDots(const uint8_t* group, const StageWeights& s, const StageQuery& q) {
  const __m512i offset = _mm512_set1_epi32(q.offset);
  return q.bits == 2 ? Dots2(group, s, offset) : Dots4(group, s, offset);
}

void ScanStagesAvx512(const uint8_t* first, const uint8_t* second, const uint32_t* list, const float* bases, size_t n,
                      const StageQuery& q1, const StageQuery& q2, float threshold, uint16_t* masks) {
  const StageWeights weights1 = LoadWeights(q1), weights2 = LoadWeights(q2);
  const size_t lines1 = StageLines(q1.bits) * 64, bytes1 = StageBytes(q1.bits);
  const size_t lines2 = StageLines(q2.bits) * 64, bytes2 = StageBytes(q2.bits);
  const __m512 least = _mm512_set1_ps(threshold);
  for (size_t i = 0; i < n && i < kGroupsAhead; ++i) Fetch(second + list[i] * bytes2, bytes2);
  for (size_t i = 0; i < n; ++i) {
    if (i + kGroupsAhead < n) Fetch(second + list[i + kGroupsAhead] * bytes2, bytes2);
    const uint8_t *a = first + list[i] * bytes1, *b = second + list[i] * bytes2;
    const __m512 product1 = _mm512_mul_ps(_mm512_set1_ps(q1.scale), StageDots(a, weights1, q1));
    const __m512 product2 = _mm512_mul_ps(_mm512_set1_ps(q2.scale), StageDots(b, weights2, q2));
    const __m512 error1 = _mm512_mul_ps(_mm512_set1_ps(q1.error), Bytes16(a + lines1));
    const __m512 error2 = _mm512_mul_ps(_mm512_set1_ps(q2.error), Bytes16(b + lines2));
    const __m512 with_first = _mm512_add_ps(_mm512_add_ps(_mm512_set1_ps(bases[i]), product1), error1);
    const __m512 with_second = _mm512_add_ps(_mm512_add_ps(with_first, product2), error2);
    const __m512 rest = _mm512_mul_ps(_mm512_set1_ps(q2.rest), Bytes16(b + lines2 + kGroupRows));
    masks[i] = static_cast<uint16_t>(_mm512_cmp_ps_mask(_mm512_add_ps(with_second, rest), least, _CMP_GE_OQ));
  }
}

void DotCodesAvx512(const int8_t* codes, size_t stride, size_t padded_dim, const uint32_t* rows, size_t n,
                    const int16_t* q, int32_t* out) {
  for (size_t r = 0; r < n; ++r) {
    if (r + kAhead < n) {
      const int8_t* next = codes + rows[r + kAhead] * stride;
      for (size_t i = 0; i < padded_dim; i += 64) _mm_prefetch(next + i, _MM_HINT_T0);
    }
    const int8_t* a = codes + rows[r] * stride;
    __m512i s0 = _mm512_setzero_si512(), s1 = s0;
    size_t i = 0;
    for (; i + 64 <= padded_dim; i += 64) {
      const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i));
      const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i + 32));
      s0 = _mm512_dpwssd_epi32(s0, _mm512_cvtepi8_epi16(lo), _mm512_loadu_si512(q + i));
      s1 = _mm512_dpwssd_epi32(s1, _mm512_cvtepi8_epi16(hi), _mm512_loadu_si512(q + i + 32));
    }
    if (i < padded_dim) {
      const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i));
      s0 = _mm512_dpwssd_epi32(s0, _mm512_cvtepi8_epi16(lo), _mm512_loadu_si512(q + i));
    }
    out[r] = _mm512_reduce_add_epi32(_mm512_add_epi32(s0, s1));
  }
}

int32_t DotInt8Avx512(const int8_t* a, const int8_t* b, size_t n) {
  __m512i s0 = _mm512_setzero_si512(), s1 = s0;
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    s0 = _mm512_dpwssd_epi32(s0, _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i))),
                             _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i))));
    s1 = _mm512_dpwssd_epi32(s1, _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i + 32))),
                             _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i + 32))));
  }
  if (i < n) {
    s0 = _mm512_dpwssd_epi32(s0, _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i))),
                             _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i))));
  }
  return _mm512_reduce_add_epi32(_mm512_add_epi32(s0, s1));
}

const Kernels kTable = {"avx512vnni",    CanonicalDotAvx512, DotRowsAvx512,  ScanGroupsAvx512,
                        ScanStageAvx512, ScanStagesAvx512,   nullptr, DotCodesAvx512,
                        DotInt8Avx512};

}  // namespace

const Kernels* Avx512Kernels() { return &kTable; }

}  // namespace pymemstore

#else

namespace pymemstore {
const Kernels* Avx512Kernels() { return nullptr; }
}  // namespace pymemstore

#endif
