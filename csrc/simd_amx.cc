// The AVX512 kernels with AMX tiles for batches. Compiled with those flags: no std template here.
#include "simd_kernels.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__AMX_INT8__) && defined(__AVX512VNNI__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pymemstore {
namespace {

struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t column_bytes[16];
  uint8_t rows[16];
};

// Dwords of 16 vectors by 16 lanes: lane i of vector k goes to lane k of row i.
inline void StoreTransposed(const __m512i* v, uint8_t* rows) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
    a[4 + i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
    a[8 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
    a[12 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_store_si512(rows + 64 * i, _mm512_shuffle_i32x4(a[i], a[8 + i], 0x88));
    _mm512_store_si512(rows + 64 * (4 + i), _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0x88));
    _mm512_store_si512(rows + 64 * (8 + i), _mm512_shuffle_i32x4(a[i], a[8 + i], 0xdd));
    _mm512_store_si512(rows + 64 * (12 + i), _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0xdd));
  }
}

// The codes of a group as 16 rows of 64 bytes.
inline void Unpack(const uint8_t* group, int32_t bits, uint8_t* rows) {
  __m512i v[16];
  if (bits == 2) {
    const __m512i low = _mm512_set1_epi8(3);
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) {
      const __m512i x = _mm512_loadu_si512(group + l * 64);
      v[4 * l] = _mm512_and_si512(x, low);
      v[4 * l + 1] = _mm512_and_si512(_mm512_srli_epi32(x, 2), low);
      v[4 * l + 2] = _mm512_and_si512(_mm512_srli_epi32(x, 4), low);
      v[4 * l + 3] = _mm512_and_si512(_mm512_srli_epi32(x, 6), low);
    }
  } else {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int l = 0; l < 8; ++l) {
      const __m512i x = _mm512_loadu_si512(group + l * 64);
      v[2 * l] = _mm512_and_si512(x, low);
      v[2 * l + 1] = _mm512_and_si512(_mm512_srli_epi32(x, 4), low);
    }
  }
  StoreTransposed(v, rows);
}

inline float Largest(const uint8_t* bytes) {
  __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  x = _mm_max_epu8(x, _mm_srli_si128(x, 8));
  x = _mm_max_epu8(x, _mm_srli_si128(x, 4));
  x = _mm_max_epu8(x, _mm_srli_si128(x, 2));
  x = _mm_max_epu8(x, _mm_srli_si128(x, 1));
  return static_cast<float>(_mm_cvtsi128_si32(x) & 0xff);
}

struct Worst {
  float error1, error2, rest;
};

inline Worst WorstOf(const uint8_t* first, int32_t bits1, const uint8_t* second, int32_t bits2) {
  const uint8_t* tail1 = first + StageLines(bits1) * 64;
  if (second == nullptr) return {Largest(tail1), 0, Largest(tail1 + kGroupRows)};
  const uint8_t* tail2 = second + StageLines(bits2) * 64;
  return {Largest(tail1), Largest(tail2), Largest(tail2 + kGroupRows)};
}

inline uint16_t Decide(const int32_t* dots, const Worst& w, const BatchQueries& q, size_t block) {
  __m512i most = _mm512_load_si512(dots);
#pragma GCC unroll 15
  for (int r = 1; r < 16; ++r) most = _mm512_max_epi32(most, _mm512_load_si512(dots + 16 * r));
  const size_t at = block * 16;
  __m512 need = _mm512_loadu_ps(q.need + at);
  need = _mm512_sub_ps(need, _mm512_mul_ps(_mm512_loadu_ps(q.error1 + at), _mm512_set1_ps(w.error1)));
  need = _mm512_sub_ps(need, _mm512_mul_ps(_mm512_loadu_ps(q.error2 + at), _mm512_set1_ps(w.error2)));
  need = _mm512_sub_ps(need, _mm512_mul_ps(_mm512_loadu_ps(q.rest + at), _mm512_set1_ps(w.rest)));
  return static_cast<uint16_t>(_mm512_cmp_ps_mask(_mm512_cvtepi32_ps(most), need, _CMP_GE_OQ));
}

void BatchGroupsAmx(const uint8_t* first, int32_t bits1, const uint8_t* second, int32_t bits2, size_t count,
                    const BatchQueries& q, uint16_t* masks) {
  alignas(64) TileConfig config = {};
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.column_bytes[i] = 64;
    config.rows[i] = 16;
  }
  _tile_loadconfig(&config);
  alignas(64) uint8_t rows[4][1024];
  alignas(64) int32_t dots[2][256];
  const size_t bytes1 = StageBytes(bits1), bytes2 = second != nullptr ? StageBytes(bits2) : 0;
  for (size_t g = 0; g < count; g += 2) {
    // Two groups share the loads of a block's weights. The last one may stand alone, and is then taken twice.
    const size_t h = g + 1 < count ? g + 1 : g;
    Unpack(first + g * bytes1, bits1, rows[0]);
    Unpack(first + h * bytes1, bits1, rows[1]);
    _tile_loadd(0, rows[0], 64);
    _tile_loadd(1, rows[1], 64);
    if (second != nullptr) {
      Unpack(second + g * bytes2, bits2, rows[2]);
      Unpack(second + h * bytes2, bits2, rows[3]);
      _tile_loadd(2, rows[2], 64);
      _tile_loadd(3, rows[3], 64);
    }
    const Worst wg = WorstOf(first + g * bytes1, bits1, second != nullptr ? second + g * bytes2 : nullptr, bits2);
    const Worst wh = WorstOf(first + h * bytes1, bits1, second != nullptr ? second + h * bytes2 : nullptr, bits2);
    for (size_t b = 0; b < q.blocks; ++b) {
      if (q.wanted[b] == 0) {
        masks[g * q.blocks + b] = masks[h * q.blocks + b] = 0;
        continue;
      }
      const int8_t* weights = q.weights + b * 2048;
      _tile_zero(4);
      _tile_zero(5);
      _tile_loadd(6, weights, 64);
      _tile_dpbusd(4, 0, 6);
      _tile_dpbusd(5, 1, 6);
      if (second != nullptr) {
        _tile_loadd(7, weights + 1024, 64);
        _tile_dpbusd(4, 2, 7);
        _tile_dpbusd(5, 3, 7);
      }
      _tile_stored(4, dots[0], 64);
      _tile_stored(5, dots[1], 64);
      masks[g * q.blocks + b] = static_cast<uint16_t>(Decide(dots[0], wg, q, b) & q.wanted[b]);
      masks[h * q.blocks + b] = static_cast<uint16_t>(Decide(dots[1], wh, q, b) & q.wanted[b]);
    }
  }
  _tile_release();
}

// The CPU has the tiles, and the system lets this process use them.
bool MayUseTiles() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 24 & 3) != 3) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const Kernels* AmxKernels() {
  if (!MayUseTiles()) return nullptr;
  static Kernels table;
  static const bool filled = [] {
    table = *Avx512Kernels();
    table.name = "amx";
    table.batch_groups = BatchGroupsAmx;
    return true;
  }();
  (void)filled;
  return &table;
}

}  // namespace pymemstore

#else

namespace pymemstore {
const Kernels* AmxKernels() { return nullptr; }
}  // namespace pymemstore

#endif
