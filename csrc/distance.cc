// The scalar kernels, and the choice of a kernel set at run time.
#include "distance.h"

#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "simd_kernels.h"

namespace pymemstore {
namespace {

double CanonicalDotScalar(const float* a, const float* b, size_t dim) {
  double l[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  size_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    for (size_t j = 0; j < 8; ++j) l[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  }
  for (size_t j = 0; i < dim; ++i, ++j) l[j] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

void DotRowsScalar(const uint8_t* base, size_t stride, size_t n, const float* q, size_t dim, float* out) {
  for (size_t r = 0; r < n; ++r) {
    const float* a = reinterpret_cast<const float*>(base + r * stride);
    float l[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    size_t i = 0;
    for (; i + 8 <= dim; i += 8) {
      for (size_t j = 0; j < 8; ++j) l[j] += q[i + j] * a[i + j];
    }
    for (size_t j = 0; i < dim; ++i, ++j) l[j] += q[i] * a[i];
    out[r] = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
  }
}

void ScanGroupsScalar(const uint8_t* blocks, size_t groups, size_t k, const ScanQuery* queries, size_t nq,
                      uint16_t* masks) {
  const size_t columns = k / 8;
  for (size_t g = 0; g < groups; ++g) {
    const uint8_t* block = blocks + g * GroupBytes(k);
    const float* scale = reinterpret_cast<const float*>(block + columns * 64);
    const uint32_t* norms = reinterpret_cast<const uint32_t*>(scale + kGroupRows);
    for (size_t j = 0; j < nq; ++j) {
      const ScanQuery& q = queries[j];
      int32_t dot[kGroupRows] = {};
      for (size_t t = 0; t < columns; ++t) {
        const uint8_t* p = block + t * 64;
        const int8_t* c = q.codes + t * 8;
        for (size_t r = 0; r < kGroupRows; ++r) {
          for (size_t b = 0; b < 4; ++b) {
            dot[r] += (p[4 * r + b] & 15) * c[b] + (p[4 * r + b] >> 4) * c[4 + b];
          }
        }
      }
      unsigned mask = 0;
      for (size_t r = 0; r < kGroupRows; ++r) {
        const float product = static_cast<float>(dot[r] - q.offset) * scale[r];
        const float rest = q.rest * static_cast<float>(norms[r] >> 16);
        const float error = q.error * static_cast<float>(norms[r] & 0xffff);
        const float with_rest = product + rest;
        mask |= static_cast<unsigned>(with_rest + error >= q.threshold) << r;
      }
      masks[g * nq + j] = static_cast<uint16_t>(mask);
    }
  }
}

void DotCodesScalar(const int8_t* codes, size_t stride, size_t padded_dim, const uint32_t* rows, size_t n,
                    const int16_t* q, int32_t* out) {
  for (size_t r = 0; r < n; ++r) {
    const int8_t* a = codes + rows[r] * stride;
    int32_t sum = 0;
    for (size_t i = 0; i < padded_dim; ++i) sum += a[i] * q[i];
    out[r] = sum;
  }
}

int32_t DotInt8Scalar(const int8_t* a, const int8_t* b, size_t n) {
  int32_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void StageDots(const uint8_t* group, const StageQuery& q, int32_t* dots) {
  const size_t parts = static_cast<size_t>(8 / q.bits);  // of a byte
  const int mask = (1 << q.bits) - 1;
  for (size_t r = 0; r < kGroupRows; ++r) {
    int32_t dot = 0;
    for (size_t l = 0; l < StageLines(q.bits); ++l) {
      for (size_t s = 0; s < parts; ++s) {
        const int8_t* c = q.codes + (l * parts + s) * 4;
        for (size_t b = 0; b < 4; ++b) {
          dot += (group[l * 64 + 4 * r + b] >> (s * static_cast<size_t>(q.bits)) & mask) * c[b];
        }
      }
    }
    dots[r] = 2 * dot - q.offset;
  }
}

void ScanStageScalar(const uint8_t* stage, const uint32_t* list, const float* bases, size_t n, const StageQuery& q,
                     float threshold, uint16_t* masks) {
  for (size_t i = 0; i < n; ++i) {
    const uint8_t* group = stage + list[i] * StageBytes(q.bits);
    const uint8_t* tail = group + StageLines(q.bits) * 64;
    int32_t dots[kGroupRows];
    StageDots(group, q, dots);
    unsigned mask = 0;
    for (size_t r = 0; r < kGroupRows; ++r) {
      const float product = q.scale * static_cast<float>(dots[r]);
      const float error = q.error * static_cast<float>(tail[r]);
      const float rest = q.rest * static_cast<float>(tail[kGroupRows + r]);
      const float with_error = (bases[i] + product) + error;
      mask |= static_cast<unsigned>(with_error + rest >= threshold) << r;
    }
    masks[i] = static_cast<uint16_t>(mask);
  }
}

void ScanStagesScalar(const uint8_t* first, const uint8_t* second, const uint32_t* list, const float* bases,
                      size_t n, const StageQuery& q1, const StageQuery& q2, float threshold, uint16_t* masks) {
  for (size_t i = 0; i < n; ++i) {
    const size_t g = list[i];
    const uint8_t* a = first + g * StageBytes(q1.bits);
    const uint8_t* b = second + g * StageBytes(q2.bits);
    const uint8_t *tail_a = a + StageLines(q1.bits) * 64, *tail_b = b + StageLines(q2.bits) * 64;
    int32_t dots_a[kGroupRows], dots_b[kGroupRows];
    StageDots(a, q1, dots_a);
    StageDots(b, q2, dots_b);
    unsigned mask = 0;
    for (size_t r = 0; r < kGroupRows; ++r) {
      const float product_a = q1.scale * static_cast<float>(dots_a[r]);
      const float error_a = q1.error * static_cast<float>(tail_a[r]);
      const float product_b = q2.scale * static_cast<float>(dots_b[r]);
      const float error_b = q2.error * static_cast<float>(tail_b[r]);
      const float rest = q2.rest * static_cast<float>(tail_b[kGroupRows + r]);
      const float with_first = (bases[i] + product_a) + error_a;
      const float with_second = (with_first + product_b) + error_b;
      mask |= static_cast<unsigned>(with_second + rest >= threshold) << r;
    }
    masks[i] = static_cast<uint16_t>(mask);
  }
}

const Kernels kScalar = {"scalar",        CanonicalDotScalar, DotRowsScalar,  ScanGroupsScalar,
                         ScanStageScalar, ScanStagesScalar,   nullptr, DotCodesScalar, DotInt8Scalar};

uint8_t Largest(const uint8_t* bytes) {
  uint8_t most = 0;
  for (size_t r = 0; r < kGroupRows; ++r) most = bytes[r] > most ? bytes[r] : most;
  return most;
}

bool CpuHasAvx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool CpuHasAvx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

const Kernels* Best() {
  for (const char* name : {"amx", "avx512vnni", "avx2", "neon"}) {
    if (const Kernels* found = FindKernels(name)) return found;
  }
  return &kScalar;
}

struct Choice {
  std::atomic<const Kernels*> kernels;
  std::string note;

  Choice() : kernels(Best()) {
    const char* wanted = std::getenv("PYMEMSTORE_KERNEL");
    if (wanted == nullptr || *wanted == '\0') return;
    if (const Kernels* found = FindKernels(wanted)) {
      kernels = found;
      note = std::string("forced by PYMEMSTORE_KERNEL=") + wanted;
    } else {
      note = std::string("PYMEMSTORE_KERNEL=") + wanted + " is unknown or not available on this machine; using " +
             kernels.load()->name;
    }
  }
};

Choice& TheChoice() {
  static Choice choice;
  return choice;
}

}  // namespace

void BatchGroupsScalar(const uint8_t* first, int32_t bits1, const uint8_t* second, int32_t bits2, size_t count,
                       const BatchQueries& q, uint16_t* masks) {
  for (size_t g = 0; g < count; ++g) {
    const uint8_t* groups[2] = {first + g * StageBytes(bits1), second ? second + g * StageBytes(bits2) : nullptr};
    const int32_t bits[2] = {bits1, bits2};
    const uint8_t *tail1 = groups[0] + StageLines(bits1) * 64, *tail = second ? groups[1] + StageLines(bits2) * 64 : tail1;
    for (size_t b = 0; b < q.blocks; ++b) {
      unsigned mask = 0;
      for (size_t j = 0; j < 16; ++j) {
        int32_t most = INT32_MIN, sums[kGroupRows] = {};
        for (size_t stage = 0; stage < (second ? 2u : 1u); ++stage) {
          int8_t codes[kStageAxes];
          for (size_t i = 0; i < kStageAxes; ++i) codes[i] = q.weights[b * 2048 + stage * 1024 + i / 4 * 64 + j * 4 + i % 4];
          StageQuery one{codes, bits[stage], 0, 0, 0, 0};
          int32_t dots[kGroupRows];
          StageDots(groups[stage], one, dots);
          for (size_t r = 0; r < kGroupRows; ++r) sums[r] += dots[r] / 2;
        }
        for (int32_t sum : sums) most = sum > most ? sum : most;
        float need = q.need[b * 16 + j];
        need = need - q.error1[b * 16 + j] * static_cast<float>(Largest(tail1));
        need = need - q.error2[b * 16 + j] * (second ? static_cast<float>(Largest(tail)) : 0.0F);
        need = need - q.rest[b * 16 + j] * static_cast<float>(Largest(tail + kGroupRows));
        mask |= static_cast<unsigned>(static_cast<float>(most) >= need) << j;
      }
      masks[g * q.blocks + b] = static_cast<uint16_t>(mask & q.wanted[b]);
    }
  }
}

const Kernels* ScalarKernels() { return &kScalar; }

const Kernels* FindKernels(const char* name) {
  if (std::strcmp(name, "scalar") == 0) return &kScalar;
  if (std::strcmp(name, "amx") == 0) return CpuHasAvx512() ? AmxKernels() : nullptr;
  if (std::strcmp(name, "avx512vnni") == 0) return CpuHasAvx512() ? Avx512Kernels() : nullptr;
  if (std::strcmp(name, "avx2") == 0) return CpuHasAvx2() ? Avx2Kernels() : nullptr;
  if (std::strcmp(name, "neon") == 0) return NeonKernels();
  return nullptr;
}

const Kernels& ActiveKernels() { return *TheChoice().kernels.load(std::memory_order_relaxed); }

bool UseKernels(const char* name) {
  const Kernels* found = FindKernels(name);
  if (found != nullptr) TheChoice().kernels = found;
  return found != nullptr;
}

double CanonicalDot(const float* a, const float* b, size_t dim) { return ActiveKernels().canonical_dot(a, b, dim); }

bool Normalise(const float* v, size_t dim, float* out) {
  for (size_t i = 0; i < dim; ++i) {
    if (!std::isfinite(v[i])) return false;
  }
  const double norm = std::sqrt(CanonicalDot(v, v, dim));
  // A norm beyond float32's normal range means values that have lost their digits, or overflow.
  if (!(norm >= FLT_MIN && norm <= FLT_MAX)) return false;
  for (size_t i = 0; i < dim; ++i) out[i] = static_cast<float>(static_cast<double>(v[i]) / norm);
  return true;
}

const char* KernelName() { return ActiveKernels().name; }
const char* KernelNote() { return TheChoice().note.c_str(); }

}  // namespace pymemstore
