// Every kernel set against plain code written here, and against the scalar set bit for bit.
#include "distance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
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
  for (const char* name : {"scalar", "avx2", "avx512vnni", "amx", "neon"}) {
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
    for (size_t stride : {dim, dim + 8, dim + 1}) {
      const size_t rows = 23;
      for (int extreme = 0; extreme < 2; ++extreme) {
        std::vector<int8_t> codes((rows - 1) * stride + dim);  // nothing behind the last row's codes
        std::vector<int16_t> q(dim);
        for (int8_t& c : codes) c = static_cast<int8_t>(extreme != 0 ? 127 : code(random));
        for (int16_t& c : q) c = static_cast<int16_t>(extreme != 0 ? -2047 : query(random));
        const std::vector<uint32_t> pick = {3, 3, 22, 0, 7, 11, 21, 5, 22, 22, 1};
        for (const Kernels* k : Available()) {
          for (size_t n = 0; n <= pick.size(); ++n) {
            std::vector<int32_t> out(pick.size() + 1, 99);
            k->dot_codes(codes.data(), stride, dim, pick.data(), n, q.data(), out.data());
            for (size_t i = 0; i < n; ++i) {
              int64_t want = 0;
              for (size_t d = 0; d < dim; ++d) want += static_cast<int64_t>(codes[pick[i] * stride + d]) * q[d];
              CHECK_EQ(out[i], want);
            }
            CHECK_EQ(out[n], 99);
          }
        }
      }
    }
  }
}

TEST(DotInt8IsExact) {
  std::mt19937 random(6);
  std::uniform_int_distribution<int> code(-128, 127);
  for (size_t n : {32U, 64U, 96U, 128U, 160U, 1024U, 4096U, 65536U}) {
    for (int extreme = 0; extreme < 4; ++extreme) {
      std::vector<int8_t> a(n + 1), b(n + 3);
      for (int8_t& c : a) c = static_cast<int8_t>(extreme == 0 ? code(random) : extreme == 1 ? 127 : -128);
      for (int8_t& c : b) c = static_cast<int8_t>(extreme == 0 ? code(random) : extreme == 3 ? 127 : -128);
      int64_t want = 0;
      for (size_t i = 0; i < n; ++i) want += a[i + 1] * b[i + 3];
      for (const Kernels* k : Available()) CHECK_EQ(k->dot_int8(a.data() + 1, b.data() + 3, n), want);
    }
  }
}

namespace {

// Groups of residual codes with random tails, and what they were made of.
struct CodedGroups {
  int32_t bits;
  size_t groups;
  std::vector<uint8_t> bytes;
  std::vector<int> codes;  // [row][axis]
  const uint8_t* tail(size_t g) const { return bytes.data() + g * StageBytes(bits) + StageLines(bits) * 64; }
};

CodedGroups MakeGroups(std::mt19937* random, int32_t bits, size_t groups) {
  CodedGroups out{bits, groups, std::vector<uint8_t>(groups * StageBytes(bits)), {}};
  const size_t per = static_cast<size_t>(32 / bits);
  for (size_t row = 0; row < groups * kGroupRows; ++row) {
    uint8_t* group = out.bytes.data() + row / kGroupRows * StageBytes(bits);
    const size_t r = row % kGroupRows;
    const unsigned kind = (*random)() % 8;  // some rows at an end of the range
    for (size_t i = 0; i < kStageAxes; ++i) {
      const unsigned top = (1U << bits) - 1;
      const unsigned c = kind == 0 ? 0 : kind == 1 ? top : (*random)() % (top + 1);
      out.codes.push_back(static_cast<int>(c));
      uint8_t& byte = group[i / per * 64 + 4 * r + i % 4];
      byte = static_cast<uint8_t>(byte | c << (i % per / 4 * static_cast<size_t>(bits)));
    }
    uint8_t* tail = group + StageLines(bits) * 64;
    tail[r] = static_cast<uint8_t>(kind == 0 ? 255 : (*random)());
    tail[kGroupRows + r] = static_cast<uint8_t>(kind == 1 ? 255 : (*random)());
  }
  return out;
}

struct Weights {
  std::vector<int8_t> codes = std::vector<int8_t>(kStageAxes);
  StageQuery q{};
};

Weights MakeWeights(std::mt19937* random, int32_t bits, int kind) {
  std::uniform_real_distribution<float> real(0.001F, 1);
  Weights out;
  int32_t sum = 0;
  for (int8_t& c : out.codes) {
    c = static_cast<int8_t>(kind == 0 ? static_cast<int>((*random)() % 255) - 127 : kind == 1 ? 127 : -127);
    sum += c;
  }
  out.q = {out.codes.data(), bits, ((1 << bits) - 1) * sum, real(*random) / 1000, real(*random) / 100, real(*random) / 100};
  return out;
}

int32_t DotOf(const CodedGroups& groups, const Weights& w, size_t row) {
  int32_t dot = 0;
  for (size_t i = 0; i < kStageAxes; ++i) dot += groups.codes[row * kStageAxes + i] * w.codes[i];
  return dot;
}

// The bound of a row as simd_kernels.h has it; volatile keeps each operation's rounding.
float BoundOf(const CodedGroups& a, const Weights& wa, const CodedGroups* b, const Weights* wb, size_t row, float base) {
  const size_t g = row / kGroupRows, r = row % kGroupRows;
  volatile float sum = base;
  const auto add = [&](float factor, float value) {
    volatile float product = factor * value;
    sum = sum + product;
  };
  add(wa.q.scale, static_cast<float>(2 * DotOf(a, wa, row) - wa.q.offset));
  add(wa.q.error, static_cast<float>(a.tail(g)[r]));
  if (b == nullptr) {
    add(wa.q.rest, static_cast<float>(a.tail(g)[kGroupRows + r]));
    return sum;
  }
  add(wb->q.scale, static_cast<float>(2 * DotOf(*b, *wb, row) - wb->q.offset));
  add(wb->q.error, static_cast<float>(b->tail(g)[r]));
  add(wb->q.rest, static_cast<float>(b->tail(g)[kGroupRows + r]));
  return sum;
}

void CheckStages(std::mt19937* random, int32_t bits1, int32_t bits2) {
  const size_t groups = 37;
  const CodedGroups a = MakeGroups(random, bits1, groups), b = MakeGroups(random, bits2 ? bits2 : 2, groups);
  size_t set = 0, total = 0;
  for (int repeat = 0; repeat < 12; ++repeat) {
    const Weights wa = MakeWeights(random, bits1, repeat % 3), wb = MakeWeights(random, bits2 ? bits2 : 2, repeat / 3 % 3);
    for (size_t n : {0U, 1U, 7U, 100U}) {
      std::vector<uint32_t> list(n);
      std::vector<float> bases(n);
      uint32_t at = 0;
      for (size_t i = 0; i < n; ++i) {  // with gaps, repeats and steps back
        at = static_cast<uint32_t>((at + (*random)() % 4) % groups);
        list[i] = (*random)() % 8 == 0 ? static_cast<uint32_t>(groups - 1) : at;
        bases[i] = static_cast<float>(static_cast<int>((*random)() % 2001) - 1000) / 1000;
      }
      std::vector<float> bounds;
      for (size_t i = 0; i < n; ++i)
        for (size_t r = 0; r < kGroupRows; ++r)
          bounds.push_back(BoundOf(a, wa, bits2 ? &b : nullptr, &wb, list[i] * kGroupRows + r, bases[i]));
      for (int t = 0; t < 6; ++t) {
        float threshold = n > 0 ? bounds[(*random)() % bounds.size()] : 0;  // one that occurs, and its neighbour
        if (t % 2 != 0) threshold = std::nextafterf(threshold, 100.0F);
        std::vector<uint16_t> want(n + 1, 0x5a5a);
        for (size_t i = 0; i < n; ++i) {
          unsigned mask = 0;
          for (size_t r = 0; r < kGroupRows; ++r)
            mask |= static_cast<unsigned>(bounds[i * kGroupRows + r] >= threshold) << r;
          want[i] = static_cast<uint16_t>(mask);
          set += static_cast<size_t>(__builtin_popcount(mask));
          total += kGroupRows;
        }
        for (const Kernels* k : Available()) {
          std::vector<uint16_t> got(n + 1, 0x5a5a);
          if (bits2) {
            k->scan_stages(a.bytes.data(), b.bytes.data(), list.data(), bases.data(), n, wa.q, wb.q, threshold, got.data());
          } else {
            k->scan_stage(a.bytes.data(), list.data(), bases.data(), n, wa.q, threshold, got.data());
          }
          if (got != want) std::fprintf(stderr, "%s, bits %d and %d, n %zu\n", k->name, bits1, bits2, n);
          CHECK_EQ(got, want);
        }
      }
    }
  }
  CHECK(set > total / 10 && set < total - total / 10);
}

}  // namespace

TEST(ScanStageGivesTheSameMasksFromEveryKernel) {
  std::mt19937 random(7);
  for (int32_t bits : {2, 4}) CheckStages(&random, bits, 0);
}

TEST(ScanStagesGivesTheSameMasksFromEveryKernel) {
  std::mt19937 random(8);
  for (int32_t bits1 : {2, 4})
    for (int32_t bits2 : {2, 4}) CheckStages(&random, bits1, bits2);
}

TEST(BatchGroupsGivesTheSameMasksFromEveryKernel) {
  std::mt19937 random(9);
  size_t set = 0, total = 0;
  for (int32_t bits1 : {2, 4}) {
    for (int32_t bits2 : {0, 2, 4}) {
      for (size_t count : {1U, 2U, 3U, 8U, 33U}) {
        const CodedGroups a = MakeGroups(&random, bits1, count), b = MakeGroups(&random, bits2 ? bits2 : 2, count);
        for (size_t blocks : {1U, 2U, 5U}) {
          const size_t n = blocks * 16;
          std::vector<Weights> first, second;
          std::vector<int8_t> weights(blocks * 2048);
          for (size_t j = 0; j < n; ++j) {
            first.push_back(MakeWeights(&random, bits1, j % 7 == 3 ? 1 : j % 7 == 5 ? 2 : 0));
            second.push_back(MakeWeights(&random, bits2 ? bits2 : 2, j % 5 == 3 ? 1 : j % 5 == 4 ? 2 : 0));
            for (size_t i = 0; i < kStageAxes; ++i) {
              const size_t at = j / 16 * 2048 + i / 4 * 64 + j % 16 * 4 + i % 4;
              weights[at] = first[j].codes[i];
              weights[at + 1024] = second[j].codes[i];  // garbage where there is one stage
            }
          }
          std::vector<uint16_t> wanted(blocks);
          for (size_t block = 0; block < blocks; ++block)
            wanted[block] = static_cast<uint16_t>(block == 1 ? 0 : block == 2 ? 0xffff : random());
          std::vector<float> need(n), error1(n), error2(n), rest(n);
          const auto most = [&](size_t g, size_t j) {
            int32_t best = INT32_MIN;
            for (size_t r = g * kGroupRows; r < (g + 1) * kGroupRows; ++r)
              best = std::max(best, DotOf(a, first[j], r) + (bits2 ? DotOf(b, second[j], r) : 0));
            return best;
          };
          for (size_t j = 0; j < n; ++j) {
            const size_t g = random() % count;
            if (j % 2 != 0) {  // whole numbers: the sum of a group is met to the last bit
              error1[j] = static_cast<float>(random() % 4);
              error2[j] = static_cast<float>(random() % 4);
              rest[j] = static_cast<float>(random() % 4);
              const CodedGroups& last = bits2 ? b : a;
              const auto largest = [](const uint8_t* p) { return static_cast<float>(*std::max_element(p, p + kGroupRows)); };
              need[j] = static_cast<float>(most(g, j)) + error1[j] * largest(a.tail(g)) +
                        (bits2 ? error2[j] * largest(b.tail(g)) : 0) + rest[j] * largest(last.tail(g) + kGroupRows);
              if (j % 4 == 3) need[j] = std::nextafterf(need[j], 1e30F);
            } else {
              error1[j] = first[j].q.error * 100;
              error2[j] = first[j].q.rest * 100;
              rest[j] = second[j].q.error * 100;
              need[j] = static_cast<float>(most(g, j) + static_cast<int>(random() % 400));
            }
            if (j % 16 == 6) need[j] = 1e38F;
            if (j % 16 == 8) need[j] = HUGE_VALF;
            if (j % 16 == 10) need[j] = -HUGE_VALF;
            if (j % 16 == 12) need[j] = -1e38F;
            if (j % 16 == 14) need[j] = std::numeric_limits<float>::quiet_NaN();
          }
          const BatchQueries q = {blocks, weights.data(), wanted.data(), need.data(), error1.data(), error2.data(), rest.data()};
          std::vector<uint16_t> want(count * blocks + 1, 0x5a5a);
          for (size_t g = 0; g < count; ++g) {
            for (size_t block = 0; block < blocks; ++block) {
              unsigned mask = 0;
              for (size_t j = block * 16; j < block * 16 + 16; ++j) {
                const auto largest = [](const uint8_t* p) { return static_cast<float>(*std::max_element(p, p + kGroupRows)); };
                volatile float least = need[j];
                volatile float part = error1[j] * largest(a.tail(g));
                least = least - part;
                part = bits2 ? error2[j] * largest(b.tail(g)) : 0.0F;
                least = least - part;
                part = rest[j] * largest((bits2 ? b : a).tail(g) + kGroupRows);
                least = least - part;
                mask |= static_cast<unsigned>(static_cast<float>(most(g, j)) >= least) << j % 16;
              }
              mask &= wanted[block];
              want[g * blocks + block] = static_cast<uint16_t>(mask);
              set += static_cast<size_t>(__builtin_popcount(mask));
              total += static_cast<size_t>(__builtin_popcount(wanted[block]));
            }
          }
          const auto check = [&](const char* name, auto* batch_groups) {
            std::vector<uint16_t> got(count * blocks + 1, 0x5a5a);
            batch_groups(a.bytes.data(), bits1, bits2 ? b.bytes.data() : nullptr, bits2, count, q, got.data());
            if (got != want) std::fprintf(stderr, "%s, bits %d and %d, %zu groups, %zu blocks\n", name, bits1, bits2, count, blocks);
            CHECK_EQ(got, want);
          };
          check("scalar", BatchGroupsScalar);
          for (const Kernels* k : Available())
            if (k->batch_groups != nullptr) check(k->name, k->batch_groups);
        }
      }
    }
  }
  CHECK(set > total / 10 && set < total - total / 10);
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
