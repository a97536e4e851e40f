// Small pieces of arithmetic, with rounding upward, that the codes of exact scans share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "distance.h"
#include "scan_basis.h"

namespace pymemstore {

// Relative slop for norms computed in double precision (dim * 2^-53 and a few roundings more).
constexpr double kUp = 1 + 1e-9;

inline float RoundUp(double x) {
  float f = static_cast<float>(x);
  return static_cast<double>(f) < x ? std::nextafterf(f, std::numeric_limits<float>::infinity()) : f;
}
inline float RoundDown(double x) { return -RoundUp(-x); }

inline double Norm(const float* v, size_t n) { return std::sqrt(CanonicalDot(v, v, n)); }

inline float MaxAbs(const float* v, size_t n) {
  float m = 0;
  for (size_t i = 0; i < n; ++i) m = std::max(m, std::fabs(v[i]));
  return m;
}

// Nearest integer of |x| < 2^22; compiles to two additions where std::rint is a call.
inline float Nearest(float x) { return (x + 0x1.8p23F) - 0x1.8p23F; }

// Writes round(v / scale), cut to +-limit, and returns |v - scale * code|, rounded up. `code_norm` gets
// |scale * code|.
template <typename T>
double Quantise(const float* v, size_t n, float scale, int limit, T* codes, double* code_norm) {
  const float inverse = 1 / scale, cut = static_cast<float>(limit);
  double error[4] = {}, norm[4] = {};  // four sums each, so that additions do not wait for one another
  size_t i = 0;
  const auto step = [&](size_t lane) {
    const float c = std::min(std::max(Nearest(v[i] * inverse), -cut), cut);
    codes[i] = static_cast<T>(c);
    const double back = static_cast<double>(scale) * static_cast<double>(c);
    const double e = static_cast<double>(v[i]) - back;
    error[lane] += e * e;
    norm[lane] += back * back;
    ++i;
  };
  while (i + 4 <= n) {
    step(0);
    step(1);
    step(2);
    step(3);
  }
  while (i < n) step(0);
  *code_norm = std::sqrt((norm[0] + norm[1]) + (norm[2] + norm[3])) * kUp;
  return std::sqrt((error[0] + error[1]) + (error[2] + error[3])) * kUp;
}

// The scale that takes the largest value to `limit`.
inline float ScaleFor(const float* v, size_t n, int limit) {
  const float m = MaxAbs(v, n);
  return m > 1e-30F ? m / static_cast<float>(limit) : 1.0F;
}

// An upper bound of the norm of what lies outside the axes, given the computed coordinates.
inline double RestNorm(const ScanBasis& b, double norm, double coordinates_norm) {
  if (b.identity) return 0;
  const double inside = std::max(0.0, coordinates_norm / kUp - b.rotate_error * norm * kUp);
  const double left = norm * norm * kUp * kUp - inside * inside / (1 + b.gram_error);
  return std::sqrt(std::max(0.0, left)) * kUp;
}

}  // namespace pymemstore
