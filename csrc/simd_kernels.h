// The table of vector kernels that run-time dispatch chooses from. Plain functions over pointers only: a file
// that is compiled for one instruction set must not instantiate a template which the linker could share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pymemstore {

// A group of first-stage codes interleaves 16 rows. Row codes lie in [1, 15] (value + 8), two to a byte: byte
// 4 r + b of 64-byte column t holds coordinate 8 t + b of row r in its low half, 8 t + 4 + b in its high half.
// After k / 8 columns come float scale[16] and uint32_t norms[16], each rest << 16 | error in units of kNormUnit.
constexpr size_t kGroupRows = 16;
constexpr size_t kGroupTail = kGroupRows * (sizeof(float) + sizeof(uint32_t));
constexpr double kNormUnit = 1.0 / 32768;
// Query codes of the first stage lie in [-127, 127]: 8 pairs of products, 8 * 2 * 127 * 15, fit 16 bits.
constexpr int kQueryCodeMax = 127;
constexpr int kRowCodeMax = 7;
// Most queries that one ScanGroups call takes.
constexpr size_t kScanTile = 8;

// What the first stage needs of a query; all is divided by the scale of the query's codes.
struct ScanQuery {
  const int8_t* codes;  // k bytes
  int32_t offset;       // 8 * sum of codes, which the +8 of the row codes adds to every dot product
  float rest;           // factor of a row's rest, per kNormUnit
  float error;          // factor of a row's error, per kNormUnit
  float threshold;
};

// Residual codes: a group is the same for each stage. Row codes of 2 or 4 bits for kStageAxes axes: byte 4 r + b of
// 64-byte line l holds for row r, lowest bits first, the axes per * l + b, per * l + 4 + b, ..., with per = 16 for 2
// bits and 8 for 4. After the lines come a byte for each row's error, then one for its rest.
constexpr size_t kStageAxes = 64;

// A stage's part of a bound: scale * float(2 dot - offset) + error * float(e) + rest * float(t).
struct StageQuery {
  const int8_t* codes;  // kStageAxes weights
  int32_t bits;         // 2 or 4
  int32_t offset;
  float scale, error, rest;
};

// A batch of queries in blocks of 16 for batch_groups, all in units of a query's scale.
struct BatchQueries {
  size_t blocks;
  const int8_t* weights;   // a block's 2 stages of [16 quarters][16 queries][4 axes]
  const uint16_t* wanted;  // of each block: the queries that are asked at all
  const float *need, *error1, *error2, *rest;  // of each query
};

// Static: each file has its own copy, compiled for its own instruction set.
static inline size_t StageLines(int32_t bits) { return kStageAxes * static_cast<size_t>(bits) / 32; }
static inline size_t StageBytes(int32_t bits) { return StageLines(bits) * 64 + 2 * kGroupRows; }

// Static: each file has its own copy, compiled for its own instruction set.
static inline size_t GroupBytes(size_t k) { return k / 8 * 64 + kGroupTail; }

struct Kernels {
  const char* name;

  // The canonical score; see CanonicalDot.
  double (*canonical_dot)(const float* a, const float* b, size_t dim);

  // out[i] = float32 dot product of q and the row at base + i * stride, in any order of summation.
  void (*dot_rows)(const uint8_t* base, size_t stride, size_t n, const float* q, size_t dim, float* out);

  // First stage. For group g and query j, bit r of masks[g * nq + j] tells whether
  //   (float(dot - offset) * scale[r] + q.rest * float(rest[r])) + q.error * float(error[r]) >= q.threshold,
  // each operation rounded on its own (no fused multiply-add), so that all kernels give the same bits.
  // k is a multiple of 8; groups are GroupBytes(k) each; 1 <= nq <= kScanTile.
  void (*scan_groups)(const uint8_t* blocks, size_t groups, size_t k, const ScanQuery* queries, size_t nq,
                      uint16_t* masks);

  // Residual codes. Bit r of masks[i] tells whether the bound of row r of group list[i] reaches `threshold`. With
  // one stage it is ((bases[i] + scale * dot) + error * e) + rest * t; a second stage adds its own scale * dot,
  // error * e and rest * t to it in this order, and the first stage's rest is left out. Each operation is rounded
  // on its own.
  void (*scan_stage)(const uint8_t* stage, const uint32_t* list, const float* bases, size_t n, const StageQuery& q,
                     float threshold, uint16_t* masks);
  void (*scan_stages)(const uint8_t* first, const uint8_t* second, const uint32_t* list, const float* bases, size_t n,
                      const StageQuery& q1, const StageQuery& q2, float threshold, uint16_t* masks);

  // Null where a batch is not faster. For `count` groups one after the other, whose second stage may be null: bit j of
  // masks[g * blocks + b] tells, for wanted queries, whether the largest of the rows' dot products over both stages,
  // as a float, reaches ((need - error1 * e1) - error2 * e2) - rest * t with the largest bytes of the group; e2 is 0
  // without a second stage, and t is the last stage's. Each operation is rounded on its own.
  void (*batch_groups)(const uint8_t* first, int32_t bits1, const uint8_t* second, int32_t bits2, size_t count,
                       const BatchQueries& q, uint16_t* masks);

  // Second stage: out[i] = exact integer dot product of q and the int8 row rows[i] at
  // codes + rows[i] * stride. padded_dim is a multiple of 32; the caller keeps sums within int32.
  void (*dot_codes)(const int8_t* codes, size_t stride, size_t padded_dim, const uint32_t* rows, size_t n,
                    const int16_t* q, int32_t* out);

  // Exact integer dot product of two int8 rows; n is a multiple of 32, at most 2^16.
  int32_t (*dot_int8)(const int8_t* a, const int8_t* b, size_t n);
};

// Null where the file was compiled for another machine. The caller checks what the CPU has.
const Kernels* ScalarKernels();
const Kernels* Avx2Kernels();
const Kernels* Avx512Kernels();
const Kernels* AmxKernels();  // this one checks by itself
const Kernels* NeonKernels();
// Slow everywhere: for tests.
void BatchGroupsScalar(const uint8_t* first, int32_t bits1, const uint8_t* second, int32_t bits2, size_t count,
                       const BatchQueries& q, uint16_t* masks);

// The kernel set in use, and for tests: the named set when this machine has it, else null; and a switch to it
// (false when the machine lacks it).
const Kernels& ActiveKernels();
const Kernels* FindKernels(const char* name);
bool UseKernels(const char* name);

}  // namespace pymemstore
