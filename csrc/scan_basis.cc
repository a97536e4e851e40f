#include "scan_basis.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>

#include "distance.h"
#include "simd_kernels.h"

namespace pymemstore {
namespace {

constexpr uint32_t kIdentityDim = 64;  // up to here the coordinates themselves are the axes
constexpr uint32_t kMaxAxes = 128;
constexpr uint32_t kAxisChoices[] = {32, 48, 64, 80, 96, 112, 128};
constexpr size_t kSampleRows = 2048;
constexpr size_t kSampleRowsWide = 1024;  // above kWideDim, where a row costs more
constexpr uint32_t kWideDim = 1024;
constexpr int kIterations = 6;
// For the choice of the number of axes: what queries ask for, and costs measured on one core.
constexpr double kTypicalThresholds[] = {0.6, 0.7, 0.8};
constexpr double kBytesPerNs = 24;  // first stage
constexpr double kSurvivorNs = 25;  // second stage, a row
constexpr double kCodeError = 0.14;  // error of 4-bit codes, relative to what they code

const uint8_t* Bytes(const float* p) { return reinterpret_cast<const uint8_t*>(p); }

void DotRows(const float* rows, size_t n, size_t width, const float* q, float* out) {
  ActiveKernels().dot_rows(Bytes(rows), width * sizeof(float), n, q, width, out);
}

// Makes the rows of x (n x width) orthonormal, in order, up to float32 rounding. A row that depends on those
// before it is replaced by a random one.
void Orthonormalise(std::vector<float>* x, size_t n, size_t width, std::mt19937* random) {
  std::vector<float> along(n);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (size_t j = 0; j < n; ++j) {
    float* row = x->data() + j * width;
    int attempts = 0;
    for (int pass = 0; pass < 3; ++pass) {  // twice is enough; more after a replacement
      if (++attempts > 16) {  // only with rows that break the contract; a zero axis keeps every bound valid
        std::fill(row, row + width, 0.0F);
        break;
      }
      const double before = std::sqrt(CanonicalDot(row, row, width));
      if (!(before > 1e-30)) {
        for (size_t i = 0; i < width; ++i) row[i] = uniform(*random);
        pass = 0;
      } else {
        for (size_t i = 0; i < width; ++i) row[i] = static_cast<float>(row[i] / before);
      }
      DotRows(x->data(), j, width, row, along.data());
      for (size_t p = 0; p < j; ++p) {
        const float* axis = x->data() + p * width;
        const float c = along[p];
        for (size_t i = 0; i < width; ++i) row[i] -= c * axis[i];
      }
      const double after = std::sqrt(CanonicalDot(row, row, width));
      if (after < 1e-4) {  // it was (nearly) a combination of the others
        for (size_t i = 0; i < width; ++i) row[i] = uniform(*random);
        pass = -1;
        continue;
      }
      for (size_t i = 0; i < width; ++i) row[i] = static_cast<float>(row[i] / after);
      if (pass >= 1 && after > 0.999) break;
    }
  }
}

// Leading eigenvectors (n x width) of the symmetric m (width x width) by orthogonal iteration.
Status LeadingEigenvectors(const std::vector<float>& m, size_t width, size_t n,
                           const std::function<bool()>& interrupted, std::mt19937* random, std::vector<float>* x) {
  std::uniform_real_distribution<float> uniform(-1, 1);
  x->resize(n * width);
  for (float& v : *x) v = uniform(*random);
  Orthonormalise(x, n, width, random);
  std::vector<float> y(n * width);
  for (int it = 0; it < kIterations; ++it) {
    if (interrupted && interrupted()) return Status::Interrupted();
    for (size_t j = 0; j < n; ++j) DotRows(m.data(), width, width, x->data() + j * width, y.data() + j * width);
    x->swap(y);
    Orthonormalise(x, n, width, random);
  }
  return Status::Ok();
}

std::vector<float> Transposed(const std::vector<float>& a, size_t rows, size_t width) {
  std::vector<float> t(a.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < width; ++j) t[j * rows + i] = a[i * width + j];
  }
  return t;
}

// How many of the leading axes make a scan cheapest: bytes of codes to read against rows that the bound lets
// through, estimated on pairs of sample rows.
uint32_t ChooseAxes(const std::vector<float>& sample, size_t rows, const ScanBasis& basis) {
  constexpr size_t kChoices = std::size(kAxisChoices);
  const size_t count = std::min<size_t>(rows, 1024), queries = std::min<size_t>(rows, 48), n = basis.k;
  std::vector<float> y(count * n), rest(count * kChoices), dots(count);
  for (size_t i = 0; i < count; ++i) {
    basis.Rotate(sample.data() + i * basis.dim, y.data() + i * n);
    double left = 1;
    size_t at = 0;
    for (size_t c = 0; c < kChoices; ++c) {
      for (; at < kAxisChoices[c] && at < n; ++at) left -= static_cast<double>(y[i * n + at] * y[i * n + at]);
      rest[i * kChoices + c] = static_cast<float>(std::sqrt(std::max(0.0, left)));
    }
  }
  uint32_t best = basis.k;
  double best_cost = HUGE_VAL;
  for (size_t c = 0; c < kChoices && kAxisChoices[c] <= n; ++c) {
    size_t pass = 0;
    for (size_t q = 0; q < queries; ++q) {
      const size_t a = q * (count / queries);
      ActiveKernels().dot_rows(Bytes(y.data()), n * sizeof(float), count, y.data() + a * n, kAxisChoices[c],
                               dots.data());
      const double outside = static_cast<double>(rest[a * kChoices + c]);
      const double inside = 1 - outside * outside;
      for (size_t i = 0; i < count; ++i) {
        if (i == a) continue;
        const double bound = static_cast<double>(dots[i]) + outside * static_cast<double>(rest[i * kChoices + c]) +
                             kCodeError * inside;
        for (double tau : kTypicalThresholds) pass += bound >= tau;
      }
    }
    const double survivors = static_cast<double>(pass) /
                             static_cast<double>(queries * count * std::size(kTypicalThresholds));
    const double cost = (kAxisChoices[c] / 2 + 8) / kBytesPerNs + kSurvivorNs * survivors;
    if (cost < best_cost) {
      best_cost = cost;
      best = kAxisChoices[c];
    }
  }
  return best;
}

// |A| <= max row sum of |entries| for a symmetric A.
double GramError(const ScanBasis& b) {
  double worst = 0;
  for (size_t i = 0; i < b.k; ++i) {
    double sum = 0;
    for (size_t j = 0; j < b.k; ++j) {
      const double dot = CanonicalDot(b.axes.data() + i * b.dim, b.axes.data() + j * b.dim, b.dim);
      sum += std::fabs(dot - (i == j ? 1.0 : 0.0));
    }
    worst = std::max(worst, sum);
  }
  return worst * (1 + 1e-9) + 1e-12;
}

}  // namespace

double DotError(size_t dim) {
  // Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1: gamma_n = n u / (1 - n u), for n
  // additions and one product in any order. Products that underflow add at most dim * 2^-126.
  const double nu = (static_cast<double>(dim) + 2) * 0x1p-24;
  return nu < 0.5 ? nu / (1 - nu) + 1e-12 : HUGE_VAL;
}

void ScanBasis::Rotate(const float* v, float* out) const {
  if (identity) {
    std::memcpy(out, v, dim * sizeof(float));
  } else {
    DotRows(axes.data(), k, dim, v, out);
  }
  for (uint32_t i = k; i < padded_k; ++i) out[i] = 0;
}

Status BuildScanBasis(const RowView& view, const std::function<bool()>& interrupted, ScanBasis* basis,
                      bool all_axes) {
  *basis = ScanBasis();
  basis->dim = view.dim;
  basis->built_rows = view.rows;
  if (view.dim <= kIdentityDim) {
    basis->identity = true;
    basis->k = view.dim;
    basis->padded_k = (view.dim + 7) / 8 * 8;
    return Status::Ok();
  }
  const size_t dim = view.dim;
  const size_t rows = static_cast<size_t>(
      std::min<uint64_t>(view.rows, (dim > kWideDim ? kSampleRowsWide : kSampleRows) * (all_axes ? 4 : 1)));
  std::vector<float> sample(rows * dim);
  for (size_t i = 0; i < rows; ++i) {
    std::memcpy(sample.data() + i * dim, view.base + view.rows * i / rows * view.stride, dim * sizeof(float));
  }
  std::mt19937 random(12345);  // fixed: the same data gives the same codes
  // Eigenvectors of the smaller one of S^T S (its eigenvectors are the axes) and S S^T (S^T times them are).
  const bool wide = dim > rows;
  const size_t width = wide ? rows : dim, inner = wide ? dim : rows;
  std::vector<float> m(width * width);
  {
    const std::vector<float> t = wide ? std::vector<float>() : Transposed(sample, rows, dim);
    const float* vectors = wide ? sample.data() : t.data();
    for (size_t i = 0; i < width; ++i) {
      if (i % 256 == 0 && interrupted && interrupted()) return Status::Interrupted();
      DotRows(vectors + i * inner, width - i, inner, vectors + i * inner, m.data() + i * width + i);
      for (size_t j = i + 1; j < width; ++j) m[j * width + i] = m[i * width + j];
    }
  }
  const size_t n = std::min<size_t>(kMaxAxes, width / 16 * 16);
  std::vector<float> x;
  PMS_RETURN_IF_ERROR(LeadingEigenvectors(m, width, n, interrupted, &random, &x));
  if (wide) {
    const std::vector<float> t = Transposed(sample, rows, dim);
    basis->axes.resize(n * dim);
    for (size_t j = 0; j < n; ++j) DotRows(t.data(), dim, rows, x.data() + j * rows, basis->axes.data() + j * dim);
    Orthonormalise(&basis->axes, n, dim, &random);
  } else {
    basis->axes = std::move(x);
  }
  basis->k = basis->padded_k = static_cast<uint32_t>(n);
  if (!all_axes) basis->k = basis->padded_k = ChooseAxes(sample, rows, *basis);
  basis->axes.resize(basis->k * dim);
  basis->axes.shrink_to_fit();
  basis->gram_error = GramError(*basis);
  // Each coordinate is a dot product with an axis of norm <= sqrt(1 + gram_error).
  basis->rotate_error = std::sqrt(basis->k * (1 + basis->gram_error)) * DotError(dim);
  return Status::Ok();
}

}  // namespace pymemstore
