// Every kernel set against plain code written here, and against the scalar set bit for bit.
#include "distance.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "simd_kernels.h"

using namespace pymemstore;

namespace {

std::vector<const Kernels*> Available() {
  std::vector<const Kernels*> out;
  for (const char* name : {"scalar", "avx2", "avx512vnni", "neon"}) {
    if (const Kernels* k = FindKernels(name)) out.push_back(k);
  }
  return out;
}

std::vector<float> Random(std::mt19937* random, size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(*random);
  return v;
}

uint64_t Bits(double x) {
  uint64_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}

const size_t kDims[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 100, 255, 256, 257, 384, 768, 1024, 4096};

}  // namespace

TEST(CanonicalDotHasTheSameBitsFromEveryKernel) {
  std::mt19937 random(1);
  for (size_t dim : kDims) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      const std::vector<float> a = Random(&random, dim + 1), b = Random(&random, dim + 3);
      const float* x = a.data() + 1;  // rows need not be aligned to more than 4 bytes
      const float* y = b.data() + 3;
      // The definition: 8 lanes of doubles, joined in a fixed order.
      double l[8] = {};
      for (size_t i = 0; i < dim; ++i) l[i % 8] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
      const double want = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
      long double exact = 0;
      for (size_t i = 0; i < dim; ++i) exact += static_cast<long double>(x[i]) * static_cast<long double>(y[i]);
      CHECK(std::fabs(static_cast<double>(exact) - want) < 1e-11 * static_cast<double>(dim));
      for (const Kernels* k : Available()) CHECK_EQ(Bits(k->canonical_dot(x, y, dim)), Bits(want));
      CHECK_EQ(Bits(CanonicalDot(x, y, dim)), Bits(want));
    }
  }
}

TEST(CanonicalDotWithExtremeValues) {
  const float tiny = std::numeric_limits<float>::denorm_min(), big = std::numeric_limits<float>::max();
  const std::vector<float> a = {tiny, big, -big, tiny, -0.0F, 1, 0, big, 3};
  const std::vector<float> b = {tiny, big, big, -tiny, 5, 1, -0.0F, tiny, 0};
  for (size_t dim = 1; dim <= a.size(); ++dim) {
    const double want = ScalarKernels()->canonical_dot(a.data(), b.data(), dim);
    for (const Kernels* k : Available()) CHECK_EQ(Bits(k->canonical_dot(a.data(), b.data(), dim)), Bits(want));
  }
}

TEST(DotRowsStaysWithinTheFloatErrorBound) {
  std::mt19937 random(2);
  for (size_t dim : kDims) {
    const size_t rows = 11, stride = dim * sizeof(float) + 4;
    const std::vector<float> q = Random(&random, dim), data = Random(&random, rows * (dim + 1));
    const uint8_t* base = reinterpret_cast<const uint8_t*>(data.data());
    for (const Kernels* k : Available()) {
      for (size_t n = 0; n <= rows; ++n) {
        std::vector<float> out(rows + 1, -77);
        k->dot_rows(base, stride, n, q.data(), dim, out.data());
        for (size_t r = 0; r < n; ++r) {
          const float* row = data.data() + r * (dim + 1);
          double exact = 0, sum = 0;
          for (size_t i = 0; i < dim; ++i) {
            const double p = static_cast<double>(q[i]) * static_cast<double>(row[i]);
            exact += p;
            sum += std::fabs(p);
          }
          CHECK(std::fabs(static_cast<double>(out[r]) - exact) <= static_cast<double>(dim + 2) * 0x1p-24 * sum);
        }
        CHECK_EQ(out[n], -77.0F);
      }
    }
  }
}

TEST(ScanGroupsGivesTheSameMasksFromEveryKernel) {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> code(1, 15), query(-kQueryCodeMax, kQueryCodeMax), norm(0, 65535);
  std::uniform_real_distribution<float> real(0.001F, 1);
  size_t set = 0, total = 0;
  for (size_t k : {8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128}) {
    for (int extreme = 0; extreme < 2; ++extreme) {
      const size_t groups = 9;
      // Row codes, coordinate by coordinate; extreme ones would overflow 16-bit sums if the ranges were wrong.
      std::vector<int> rows(groups * kGroupRows * k);
      for (int& c : rows) c = extreme != 0 ? (random() % 8 != 0 ? 15 : 1) : code(random);
      std::vector<uint8_t> blocks(groups * GroupBytes(k), 0);
      std::vector<float> scale(groups * kGroupRows);
      std::vector<uint32_t> rest(groups * kGroupRows), error(groups * kGroupRows);
      for (size_t row = 0; row < scale.size(); ++row) {
        uint8_t* block = blocks.data() + row / kGroupRows * GroupBytes(k);
        const size_t lane = row % kGroupRows;
        for (size_t i = 0; i < k; ++i) {
          block[i / 8 * 64 + lane * 4 + i % 4] = static_cast<uint8_t>(
              block[i / 8 * 64 + lane * 4 + i % 4] | (rows[row * k + i] << (i % 8 < 4 ? 0 : 4)));
        }
        scale[row] = real(random);
        rest[row] = static_cast<uint32_t>(norm(random));
        error[row] = static_cast<uint32_t>(norm(random));
        const uint32_t norms = rest[row] << 16 | error[row];
        std::memcpy(block + k / 8 * 64 + lane * 4, &scale[row], 4);
        std::memcpy(block + k / 8 * 64 + kGroupRows * 4 + lane * 4, &norms, 4);
      }
      std::vector<std::vector<int8_t>> codes(kScanTile, std::vector<int8_t>(k));
      std::vector<ScanQuery> queries(kScanTile);
      for (size_t j = 0; j < kScanTile; ++j) {
        int32_t offset = 0;
        for (int8_t& c : codes[j]) {
          c = static_cast<int8_t>(extreme != 0 ? (j % 2 != 0 ? kQueryCodeMax : -kQueryCodeMax) : query(random));
          offset += 8 * c;
        }
        const float spread = extreme != 0 ? 600.0F * static_cast<float>(k) : 400 * std::sqrt(static_cast<float>(k));
        queries[j] = {codes[j].data(), offset, real(random) / 100, real(random) / 100,
                      (real(random) - 0.5F) * spread};
      }
      for (size_t nq = 1; nq <= kScanTile; ++nq) {
        std::vector<uint16_t> want(groups * nq, 0);
        for (size_t row = 0; row < scale.size(); ++row) {
          for (size_t j = 0; j < nq; ++j) {
            int64_t dot = 0;
            for (size_t i = 0; i < k; ++i) dot += (rows[row * k + i] - 8) * codes[j][i];
            const float product = static_cast<float>(dot) * scale[row];
            const float r = queries[j].rest * static_cast<float>(rest[row]);
            const float e = queries[j].error * static_cast<float>(error[row]);
            const float with_rest = product + r;
            const bool pass = with_rest + e >= queries[j].threshold;
            uint16_t& mask = want[row / kGroupRows * nq + j];
            mask = static_cast<uint16_t>(mask | (pass ? 1 << row % kGroupRows : 0));
            set += pass;
            ++total;
          }
        }
        for (const Kernels* kernels : Available()) {
          std::vector<uint16_t> got(groups * nq + 1, 0x5a5a);
          kernels->scan_groups(blocks.data(), groups, k, queries.data(), nq, got.data());
          CHECK_EQ(got.back(), 0x5a5a);
          got.pop_back();
          CHECK_EQ(got, want);
        }
      }
    }
  }
  CHECK(set > total / 20 && set < total - total / 20);  // the thresholds did separate
}

TEST(DotCodesIsExact) {
  std::mt19937 random(4);
  std::uniform_int_distribution<int> code(-127, 127), query(-2047, 2047);
  for (size_t dim : {32, 64, 96, 256, 384, 1024, 4096}) {
    const size_t rows = 23;
    for (int extreme = 0; extreme < 2; ++extreme) {
      std::vector<int8_t> codes(rows * dim);
      std::vector<int16_t> q(dim);
      for (int8_t& c : codes) c = static_cast<int8_t>(extreme != 0 ? 127 : code(random));
      for (int16_t& c : q) c = static_cast<int16_t>(extreme != 0 ? -2047 : query(random));
      const std::vector<uint32_t> pick = {3, 3, 22, 0, 7, 11, 21, 5};
      for (const Kernels* k : Available()) {
        for (size_t n = 0; n <= pick.size(); ++n) {
          std::vector<int32_t> out(pick.size() + 1, 99);
          k->dot_codes(codes.data(), dim, pick.data(), n, q.data(), out.data());
          for (size_t i = 0; i < n; ++i) {
            int64_t want = 0;
            for (size_t d = 0; d < dim; ++d) want += static_cast<int64_t>(codes[pick[i] * dim + d]) * q[d];
            CHECK_EQ(out[i], want);
          }
          CHECK_EQ(out[n], 99);
        }
      }
    }
  }
}

TEST(NormaliseScalesToUnitLength) {
  std::mt19937 random(5);
  for (float scale : {1e-30F, 1e-5F, 1.0F, 1e5F, 1e30F}) {
    for (size_t dim : kDims) {
      std::vector<float> v = Random(&random, dim), out(dim);
      for (float& x : v) x *= scale;
      CHECK(Normalise(v.data(), dim, out.data()));
      long double norm = 0;
      for (float x : v) norm += static_cast<long double>(x) * static_cast<long double>(x);
      norm = std::sqrt(norm);
      for (size_t i = 0; i < dim; ++i) {
        const double want = static_cast<double>(static_cast<long double>(v[i]) / norm);
        CHECK(std::fabs(static_cast<double>(out[i]) - want) <= std::fabs(want) * 0x1.01p-24);
      }
      CHECK(std::fabs(CanonicalDot(out.data(), out.data(), dim) - 1) < 2e-7);
    }
  }
}

TEST(NormaliseRefusesWhatHasNoDirection) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(16);
  const std::vector<std::vector<float>> bad = {
      std::vector<float>(16, 0.0F),  std::vector<float>(16, -0.0F), {0.1F, nan},
      std::vector<float>(16, nan),   {0.1F, inf},                   {-inf, 0.1F},
      std::vector<float>(16, 3e38F), {1e-40F, 1e-41F}};
  for (const std::vector<float>& v : bad) CHECK(!Normalise(v.data(), v.size(), out.data()));
  const std::vector<float> fine = {3e38F, 0.0F, 1e-40F};
  CHECK(Normalise(fine.data(), fine.size(), out.data()));
  CHECK_EQ(out[0], 1.0F);
}

TEST(KernelsCanBeChosen) {
  const std::string before = KernelName();
  CHECK(FindKernels(before.c_str()) != nullptr);
  CHECK(FindKernels("mmx") == nullptr);
  CHECK(!UseKernels("mmx"));
  CHECK_EQ(std::string(KernelName()), before);
  for (const Kernels* k : Available()) {
    CHECK(UseKernels(k->name));
    CHECK_EQ(std::string(KernelName()), std::string(k->name));
  }
  CHECK(UseKernels(before.c_str()));
}

TEST(TheEnvironmentVariableForcesAKernel) {
  const char* wanted = std::getenv("PYMEMSTORE_KERNEL");
  const std::string note = KernelNote();
  if (wanted == nullptr || *wanted == '\0') {
    CHECK_EQ(note, std::string());
  } else if (FindKernels(wanted) != nullptr) {
    CHECK_EQ(std::string(KernelName()), std::string(wanted));
    CHECK(note.find("forced") != std::string::npos);
  } else {
    CHECK(note.find("not available") != std::string::npos);
  }
}
