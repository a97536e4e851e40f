// Makes the file that sealed_codes.cc reads.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>

#include "chunk_runner.h"
#include "clusters.h"
#include "scan_math.h"
#include "sealed_codes.h"
#include "simd_kernels.h"

namespace pymemstore {
namespace {

using Progress = std::function<void(const char*, uint64_t, uint64_t)>;

constexpr size_t kTrainRows = 131072;         // that centroids are found from
constexpr size_t kTrainBytes = 256u << 20;
constexpr size_t kResidualRows = 8192;        // that axes, steps and bits are found from
constexpr double kClustersPerRoot = 4;        // centroids a square root of rows
constexpr uint64_t kChunkRows = 2048;
// r is computed in float32: |computed - exact| <= 2^-24 |r|, with headroom.
constexpr double kResidualRounding = 1.3e-7;
// Steps in standard deviations of a coordinate: the best for a normal distribution and 4 or 16 levels.
constexpr double kStepOf2Bits = 0.9957, kStepOf4Bits = 0.335;
// For the choice of bits: what queries ask for, and costs of what a query reads.
constexpr double kTypicalThresholds[] = {0.6, 0.7, 0.8};
// What stays in memory while queries come: with more rows fewer bits are taken.
constexpr double kStageMemory = 1 << 30, kPadding = 1.06;
constexpr double kGroupCost = 60, kSurvivorCost = 1500;  // in bytes read one after the other

double StepFactor(int32_t bits) { return bits == 2 ? kStepOf2Bits : kStepOf4Bits; }

// A file without a name that is mapped for writing: what does not fit in memory goes to the disk.
class Scratch {
 public:
  static Result<std::unique_ptr<Scratch>> Create(const std::string& path, size_t bytes) {
    PMS_ASSIGN_OR_RETURN(Fd fd, OpenFile(path, O_RDWR | O_CREAT | O_TRUNC));
    ::unlink(path.c_str());
    // Now, or a full disk would be a signal later.
    const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
    if (error != 0) return ErrnoStatus("cannot make room in", path, error);
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (p == MAP_FAILED) return ErrnoStatus("cannot map", path, errno);
    return std::unique_ptr<Scratch>(new Scratch(static_cast<uint8_t*>(p), bytes));
  }
  ~Scratch() { ::munmap(data_, bytes_); }
  uint8_t* data() { return data_; }

 private:
  Scratch(uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {}
  uint8_t* const data_;
  const size_t bytes_;
};

// A stage's part of what is kept of a row until all rows are known.
struct Coded {
  float error, rest;
};

// Residuals as the codes take them: v - c with c as it is stored.
class Residuals {
 public:
  Residuals(const Clusters& clusters, uint32_t dim) : dim_(dim), padded_((dim + 31) / 32 * 32) {
    codes_.assign(clusters.size() * padded_, 0);
    for (uint32_t i = 0; i < clusters.size(); ++i) {
      const float* c = clusters.centroid(i);
      scales_.push_back(ScaleFor(c, dim, 127));
      double norm;
      (void)Quantise(c, dim, scales_[i], 127, codes_.data() + i * padded_, &norm);
      max_norm_ = std::max(max_norm_, norm);
    }
  }
  void Of(const float* v, uint32_t cluster, float* r) const {
    const int8_t* c = codes_.data() + cluster * padded_;
    const double scale = static_cast<double>(scales_[cluster]);
    for (uint32_t k = 0; k < dim_; ++k) r[k] = static_cast<float>(static_cast<double>(v[k]) - scale * c[k]);
  }
  const std::vector<int8_t>& codes() const { return codes_; }
  const std::vector<float>& scales() const { return scales_; }
  double max_norm() const { return max_norm_; }

 private:
  const uint32_t dim_;
  const size_t padded_;
  std::vector<int8_t> codes_;
  std::vector<float> scales_;
  double max_norm_ = 0;
};

// Codes one stage of y: levels u in [0, 2^bits), standing for (u - mid) * step. Packs them as the kernels read them.
struct StageCoder {
  int32_t bits = 2;
  const float* steps = nullptr;

  // Returns |y - y^|. `words` gets StageLines(bits) words of four bytes; null: not wanted.
  double Code(const float* y, uint8_t* words, double* code_norm, double* value_norm) const {
    const float top = static_cast<float>((1 << bits) - 1), mid = top / 2;
    double error = 0, codes = 0, values = 0;
    if (words != nullptr) std::memset(words, 0, StageLines(bits) * 4);
    const size_t parts = static_cast<size_t>(8 / bits);
    for (size_t i = 0; i < kStageAxes; ++i) {
      const float u = std::min(std::max(std::floor(y[i] / steps[i] + mid + 0.5F), 0.0F), top);
      const double level = static_cast<double>(u - mid);
      const double value = level * static_cast<double>(steps[i]);
      const double e = static_cast<double>(y[i]) - value;
      error += e * e;
      codes += level * level;
      values += value * value;
      if (words == nullptr) continue;
      const size_t line = i / (4 * parts), part = i / 4 % parts, byte = i % 4;
      words[line * 4 + byte] = static_cast<uint8_t>(words[line * 4 + byte] |
                                                    static_cast<unsigned>(u) << (part * static_cast<size_t>(bits)));
    }
    *code_norm = std::sqrt(codes) * kUp;
    *value_norm = std::sqrt(values) * kUp;
    return std::sqrt(error) * kUp;
  }
};

class Sealer {
 public:
  Sealer(const RowView& view, const std::string& path, const DerivedStamp& stamp, int threads,
         const Progress& progress, const std::function<bool()>& interrupted)
      : view_(view), path_(path), stamp_(stamp), threads_(std::max(threads, 1)), progress_(progress),
        interrupted_(interrupted) {}

  Status Run() {
    if (view_.rows < kMinSealedRows || view_.rows >= kNoRow)
      return Status::InvalidArgument("sealed codes are made of at least " + std::to_string(kMinSealedRows) + " rows");
    PMS_RETURN_IF_ERROR(FindClusters());
    PMS_RETURN_IF_ERROR(FindAxes());
    PMS_ASSIGN_OR_RETURN(writer_, DerivedWriter::Create(path_, stamp_, DerivedType::kCodes));
    PMS_RETURN_IF_ERROR(CodeRows());
    Order();
    return Write();
  }

 private:
  Status Tell(const char* phase, uint64_t done, uint64_t total) {
    if (interrupted_ && interrupted_()) return Status::Interrupted();
    if (progress_) progress_(phase, done, total);
    return Status::Ok();
  }

  Status FindClusters() {
    const uint32_t dim = view_.dim;
    const size_t n = static_cast<size_t>(std::min<uint64_t>(
        view_.rows, std::max<size_t>(kMinSealedRows, std::min(kTrainRows, kTrainBytes / (4 * size_t{dim})))));
    std::vector<float> sample;
    sample.reserve(n * dim);
    for (size_t i = 0; i < n; ++i) {
      const float* v = view_.row(view_.rows * i / n);
      if (!(Norm(v, dim) <= kMostRowNorm)) continue;
      sample.insert(sample.end(), v, v + dim);
    }
    const size_t usable = sample.size() / dim;
    if (usable < kMinSealedRows / 2) return Status::Corruption(path_ + ": most vectors hold values that are not numbers");
    const uint32_t wanted = static_cast<uint32_t>(
        std::min(kClustersPerRoot * std::sqrt(static_cast<double>(view_.rows)), static_cast<double>(usable) / 8));
    PMS_RETURN_IF_ERROR(Clusters::Train(sample.data(), usable, dim, wanted, threads_, [&](uint64_t done, uint64_t total) {
      if (progress_) progress_("clustering", done, total);
    }, interrupted_, &clusters_));
    residuals_ = std::make_unique<Residuals>(clusters_, dim);
    const size_t kept = std::min(usable, kResidualRows);
    std::vector<float> scratch;
    for (size_t i = 0; i < kept; ++i) {
      const float* v = sample.data() + usable * i / kept * dim;
      sample_.insert(sample_.end(), v, v + dim);
      sample_owner_.push_back(clusters_.Assign(v, &scratch));
    }
    return Status::Ok();
  }

  // Axes of the residuals, steps along them, and the bits that make queries cheapest.
  Status FindAxes() {
    const uint32_t dim = view_.dim;
    const size_t n = sample_owner_.size();
    std::vector<float> r(n * dim);
    for (size_t i = 0; i < n; ++i) residuals_->Of(sample_.data() + i * dim, sample_owner_[i], r.data() + i * dim);
    RowView rows;
    rows.base = reinterpret_cast<const uint8_t*>(r.data());
    rows.stride = dim * sizeof(float);
    rows.dim = dim;
    rows.rows = n;
    PMS_RETURN_IF_ERROR(BuildScanBasis(rows, interrupted_, &basis_, true));
    basis_.rotate_error += kResidualRounding * (1 + basis_.gram_error);
    std::vector<float> y(n * kAxes, 0.0F);
    steps_.assign(kAxes, 0.0F);
    std::vector<double> squares(kAxes, 0.0);
    for (size_t i = 0; i < n; ++i) {
      basis_.Rotate(r.data() + i * dim, y.data() + i * kAxes);
      for (size_t k = 0; k < kAxes; ++k) squares[k] += static_cast<double>(y[i * kAxes + k] * y[i * kAxes + k]);
    }
    const int32_t second[] = {2, 4};
    double best = HUGE_VAL;
    CodesMeta chosen;
    for (int32_t bits1 : {2, 4}) {
      for (int32_t bits2 : second) {
        if (basis_.k <= kStageAxes) bits2 = 0;
        meta_.bits1 = bits1;
        meta_.bits2 = bits2;
        const double bytes = kPadding * static_cast<double>(view_.rows) / static_cast<double>(kGroupRows) *
                             static_cast<double>(StageBytes(bits1) + (bits2 ? StageBytes(bits2) : 0));
        if (bytes > kStageMemory && bits1 + bits2 > 4 && best < HUGE_VAL) continue;
        SetSteps(squares, n);
        const double cost = Cost(r, y);
        if (cost < best) {
          best = cost;
          chosen = meta_;
        }
        if (bits2 == 0) break;
      }
    }
    meta_ = chosen;
    SetSteps(squares, n);
    meta_.clusters = clusters_.size();
    meta_.axes = basis_.k;
    meta_.identity = basis_.identity;
    meta_.gram_error = basis_.gram_error;
    meta_.rotate_error = basis_.rotate_error;
    meta_.max_centroid = residuals_->max_norm();
    return Status::Ok();
  }

  void SetSteps(const std::vector<double>& squares, size_t n) {
    for (size_t k = 0; k < kAxes; ++k) {
      const double factor = StepFactor(k < kStageAxes || meta_.bits2 == 0 ? meta_.bits1 : meta_.bits2);
      steps_[k] = static_cast<float>(factor * std::sqrt(squares[k] / static_cast<double>(n)) + 1e-9);
    }
    first_ = {meta_.bits1, steps_.data()};
    second_ = {meta_.bits2, steps_.data() + kStageAxes};
  }

  // What a query reads a group of rows, roughly, with the bits in meta_: sample rows asked for one another.
  double Cost(const std::vector<float>& r, const std::vector<float>& y) const {
    const uint32_t dim = view_.dim;
    const size_t n = std::min<size_t>(sample_owner_.size(), 2048), asked = std::min<size_t>(n, 48);
    struct Row {
      double error1, rest1, error2, rest2;
    };
    std::vector<Row> about(n);
    std::vector<float> values(n * kAxes, 0.0F);
    for (size_t i = 0; i < n; ++i) {
      const float* yi = y.data() + i * kAxes;
      double unused;
      const double norm = Norm(r.data() + i * dim, dim);
      about[i].error1 = first_.Code(yi, nullptr, &unused, &unused);
      about[i].rest1 = RestNorm(basis_, norm, Norm(yi, kStageAxes));
      about[i].error2 = meta_.bits2 ? second_.Code(yi + kStageAxes, nullptr, &unused, &unused) : 0;
      about[i].rest2 = RestNorm(basis_, norm, Norm(yi, kAxes));
    }
    double group2 = 0, survivors = 0;
    for (size_t a = 0; a < asked; ++a) {
      const float* q = sample_.data() + a * (n / asked) * dim;
      float z[kAxes] = {};
      basis_.Rotate(q, z);
      const double z1 = Norm(z, kStageAxes), z2 = Norm(z + kStageAxes, kStageAxes), norm = Norm(q, dim);
      const double rest1 = RestNorm(basis_, norm, z1), rest2 = RestNorm(basis_, norm, Norm(z, kAxes));
      size_t pass1[3] = {}, pass2[3] = {};
      for (size_t i = 0; i < n; ++i) {
        // About q.c + z1.y1: the codes' own error is in `error`.
        const double score = CanonicalDot(q, sample_.data() + i * dim, dim) - CanonicalDot(q, r.data() + i * dim, dim);
        const double with1 = score + CanonicalDot(z, y.data() + i * kAxes, kStageAxes) + z1 * about[i].error1;
        const double bound1 = with1 + rest1 * about[i].rest1;
        const double bound2 = with1 + CanonicalDot(z + kStageAxes, y.data() + i * kAxes + kStageAxes, kStageAxes) +
                              z2 * about[i].error2 + rest2 * about[i].rest2;
        for (size_t t = 0; t < 3; ++t) {
          pass1[t] += bound1 >= kTypicalThresholds[t];
          pass2[t] += bound1 >= kTypicalThresholds[t] && (meta_.bits2 == 0 || bound2 >= kTypicalThresholds[t]);
        }
      }
      for (size_t t = 0; t < 3; ++t) {
        const double share = static_cast<double>(pass1[t]) / static_cast<double>(n);
        group2 += 1 - std::pow(1 - share, static_cast<double>(kGroupRows));
        survivors += static_cast<double>(pass2[t]) / static_cast<double>(n);
      }
    }
    const double all = static_cast<double>(3 * asked);
    const double second = meta_.bits2 ? static_cast<double>(StageBytes(meta_.bits2)) + kGroupCost : 0;
    return static_cast<double>(StageBytes(meta_.bits1)) + group2 / all * second +
           survivors / all * static_cast<double>(kGroupRows) * kSurvivorCost;
  }

  // What is kept of a row until its place is known: the words of both stages, Coded of each, its cluster and |r|.
  size_t Words1() const { return StageLines(meta_.bits1) * 4; }
  size_t Words2() const { return meta_.bits2 ? StageLines(meta_.bits2) * 4 : 0; }
  size_t KeptBytes() const { return Words1() + Words2() + 2 * sizeof(Coded) + sizeof(uint32_t) + sizeof(float); }

  Status CodeRows() {
    const size_t kept = KeptBytes();
    PMS_ASSIGN_OR_RETURN(kept_, Scratch::Create(path_ + ".rows.tmp", view_.rows * kept));
    std::mutex mutex;  // of meta_'s maxima and of progress
    uint64_t done = 0;
    const auto work = [&](size_t, uint64_t chunk) {
      CodesMeta seen;
      std::vector<float> scratch, r(view_.dim), y(kAxes);
      const uint64_t end = std::min(view_.rows, (chunk + 1) * kChunkRows);
      for (uint64_t i = chunk * kChunkRows; i < end; ++i) CodeRow(i, kept_->data() + i * kept, &scratch, &r, &y, &seen);
      std::lock_guard<std::mutex> lock(mutex);
      for (double CodesMeta::*field : {&CodesMeta::max_residual, &CodesMeta::max_norm, &CodesMeta::code_norm1,
                                       &CodesMeta::code_norm2, &CodesMeta::value_norm1, &CodesMeta::value_norm2})
        meta_.*field = std::max(meta_.*field, seen.*field);
      for (float CodesMeta::*field : {&CodesMeta::error1_unit, &CodesMeta::rest1_unit, &CodesMeta::error2_unit,
                                      &CodesMeta::rest2_unit})
        meta_.*field = std::max(meta_.*field, seen.*field);
      done += end - chunk * kChunkRows;
      return Status::Ok();
    };
    // In pieces, so that progress is told on this thread.
    const uint64_t chunks = (view_.rows + kChunkRows - 1) / kChunkRows, piece = 64;
    for (uint64_t from = 0; from < chunks; from += piece) {
      PMS_RETURN_IF_ERROR(RunChunks(std::min(piece, chunks - from), static_cast<size_t>(threads_ - 1), interrupted_,
                                    [&](size_t worker, uint64_t chunk) { return work(worker, from + chunk); }));
      PMS_RETURN_IF_ERROR(Tell("coding", done, view_.rows));
    }
    // The largest value is 255 units. A little more, since the division rounds.
    for (float CodesMeta::*field : {&CodesMeta::error1_unit, &CodesMeta::rest1_unit, &CodesMeta::error2_unit,
                                    &CodesMeta::rest2_unit})
      meta_.*field = RoundUp(static_cast<double>(meta_.*field) / 255 * (1 + 1e-6)) + 1e-12F;
    return Status::Ok();
  }

  // `seen` takes maxima; its units hold the largest errors and rests.
  void CodeRow(uint64_t row, uint8_t* out, std::vector<float>* scratch, std::vector<float>* r, std::vector<float>* y,
               CodesMeta* seen) const {
    const float* v = view_.row(row);
    uint32_t cluster = kNoRow;
    float radius = 0;
    Coded about[2] = {};
    const double norm = Norm(v, view_.dim) * kUp;
    if (norm <= kMostRowNorm) {
      cluster = clusters_.Assign(v, scratch);
      residuals_->Of(v, cluster, r->data());
      const double length = Norm(r->data(), view_.dim) * (1 + kResidualRounding) * kUp;
      radius = RoundUp(length);
      std::fill(y->begin(), y->end(), 0.0F);
      basis_.Rotate(r->data(), y->data());
      double codes, values;
      const double rotated = basis_.rotate_error * length;
      about[0].error = RoundUp(first_.Code(y->data(), out, &codes, &values) + rotated);
      seen->code_norm1 = std::max(seen->code_norm1, codes);
      seen->value_norm1 = std::max(seen->value_norm1, values);
      about[0].rest = RoundUp(RestNorm(basis_, length, Norm(y->data(), kStageAxes)));
      if (meta_.bits2) {
        about[1].error = RoundUp(second_.Code(y->data() + kStageAxes, out + Words1(), &codes, &values) + rotated);
        seen->code_norm2 = std::max(seen->code_norm2, codes);
        seen->value_norm2 = std::max(seen->value_norm2, values);
        about[1].rest = RoundUp(RestNorm(basis_, length, Norm(y->data(), kAxes)));
      }
      seen->max_residual = std::max(seen->max_residual, length);
      seen->max_norm = std::max(seen->max_norm, norm);
      seen->error1_unit = std::max(seen->error1_unit, about[0].error);
      seen->rest1_unit = std::max(seen->rest1_unit, about[0].rest);
      seen->error2_unit = std::max(seen->error2_unit, about[1].error);
      seen->rest2_unit = std::max(seen->rest2_unit, about[1].rest);
    }
    uint8_t* tail = out + Words1() + Words2();
    std::memcpy(tail, about, sizeof about);
    std::memcpy(tail + sizeof about, &cluster, sizeof cluster);
    std::memcpy(tail + sizeof about + sizeof cluster, &radius, sizeof radius);
  }

  template <typename T>
  T Kept(uint64_t row, size_t at) const {
    T value;
    std::memcpy(&value, kept_->data() + row * KeptBytes() + Words1() + Words2() + at, sizeof value);
    return value;
  }
  Coded About(uint64_t row, size_t stage) const { return Kept<Coded>(row, stage * sizeof(Coded)); }
  uint32_t ClusterOf(uint64_t row) const { return Kept<uint32_t>(row, 2 * sizeof(Coded)); }
  float Radius(uint64_t row) const { return Kept<float>(row, 2 * sizeof(Coded) + sizeof(uint32_t)); }

  // Rows by cluster, the largest residual first, each cluster filled up to whole groups.
  void Order() {
    std::vector<uint64_t> starts(meta_.clusters + size_t{1}, 0);
    for (uint64_t i = 0; i < view_.rows; ++i)
      if (ClusterOf(i) != kNoRow) ++starts[ClusterOf(i) + size_t{1}];
    first_group_.assign(1, 0);
    for (uint32_t c = 0; c < meta_.clusters; ++c) {
      first_group_.push_back(first_group_[c] + static_cast<uint32_t>((starts[c + 1] + kGroupRows - 1) / kGroupRows));
      starts[c + 1] += starts[c];
    }
    meta_.groups = first_group_.back();
    std::vector<uint32_t> by_cluster(starts.back());
    {
      std::vector<uint64_t> next(starts.begin(), starts.end() - 1);
      for (uint64_t i = 0; i < view_.rows; ++i)
        if (ClusterOf(i) != kNoRow) by_cluster[next[ClusterOf(i)]++] = static_cast<uint32_t>(i);
    }
    order_.assign(static_cast<size_t>(meta_.groups) * kGroupRows, kNoRow);
    for (uint32_t c = 0; c < meta_.clusters; ++c) {
      std::vector<std::pair<float, uint32_t>> members;
      for (uint64_t i = starts[c]; i < starts[c + 1]; ++i) members.emplace_back(-Radius(by_cluster[i]), by_cluster[i]);
      std::sort(members.begin(), members.end());
      for (size_t i = 0; i < members.size(); ++i)
        order_[static_cast<size_t>(first_group_[c]) * kGroupRows + i] = members[i].second;
    }
  }

  static uint8_t Units(float value, float unit) {
    return static_cast<uint8_t>(std::min(std::ceil(static_cast<double>(value) / static_cast<double>(unit) * kUp), 255.0));
  }

  Status WriteStage(size_t stage, int32_t bits, size_t words_at, float error_unit, float rest_unit) {
    if (bits == 0) return writer_->EndSection();
    std::vector<uint8_t> group(StageBytes(bits));
    for (uint32_t g = 0; g < meta_.groups; ++g) {
      std::fill(group.begin(), group.end(), uint8_t{0});
      for (size_t lane = 0; lane < kGroupRows; ++lane) {
        const uint32_t row = order_[static_cast<size_t>(g) * kGroupRows + lane];
        if (row == kNoRow) continue;
        const uint8_t* words = kept_->data() + row * KeptBytes() + words_at;
        for (size_t l = 0; l < StageLines(bits); ++l) std::memcpy(&group[l * 64 + lane * 4], words + l * 4, 4);
        const Coded about = About(row, stage);
        group[StageLines(bits) * 64 + lane] = Units(about.error, error_unit);
        group[StageLines(bits) * 64 + kGroupRows + lane] = Units(about.rest, rest_unit);
      }
      PMS_RETURN_IF_ERROR(writer_->Append(group.data(), group.size()));
      if (g % 65536 == 0) PMS_RETURN_IF_ERROR(Tell("sealing", 0, view_.rows));
    }
    return writer_->EndSection();
  }

  Status Write() {
    const auto section = [&](const auto& values) {
      return writer_->Section(values.data(), values.size() * sizeof(values[0]));
    };
    PMS_RETURN_IF_ERROR(writer_->Section(&meta_, sizeof meta_));
    PMS_RETURN_IF_ERROR(section(basis_.axes));
    PMS_RETURN_IF_ERROR(section(steps_));
    PMS_RETURN_IF_ERROR(section(residuals_->codes()));
    PMS_RETURN_IF_ERROR(section(residuals_->scales()));
    PMS_RETURN_IF_ERROR(section(first_group_));
    std::vector<float> radii(meta_.groups, 0.0F);
    for (uint32_t g = 0; g < meta_.groups; ++g) radii[g] = Radius(order_[static_cast<size_t>(g) * kGroupRows]);
    PMS_RETURN_IF_ERROR(section(radii));
    PMS_RETURN_IF_ERROR(section(order_));
    PMS_RETURN_IF_ERROR(WriteStage(0, meta_.bits1, 0, meta_.error1_unit, meta_.rest1_unit));
    PMS_RETURN_IF_ERROR(WriteStage(1, meta_.bits2, Words1(), meta_.error2_unit, meta_.rest2_unit));
    PMS_RETURN_IF_ERROR(WriteWhole());
    return writer_->Finish(view_.rows);
  }

  Status WriteWhole() {
    const size_t stride = WholeStride(view_.dim), padded = stride - 8;
    std::vector<int8_t> row(stride, 0);
    for (uint64_t i = 0; i < view_.rows; ++i) {
      if (i % kChunkRows == 0) PMS_RETURN_IF_ERROR(Tell("sealing", i, view_.rows));
      float about[2] = {1, 0};
      if (ClusterOf(i) != kNoRow) {
        const float* v = view_.row(i);
        double norm;
        about[0] = ScaleFor(v, view_.dim, 127);
        about[1] = RoundUp(Quantise(v, view_.dim, about[0], 127, row.data(), &norm));
      } else {
        std::fill(row.begin(), row.end(), int8_t{0});
      }
      std::memcpy(row.data() + padded, about, sizeof about);
      PMS_RETURN_IF_ERROR(writer_->Append(row.data(), stride));
    }
    return writer_->EndSection();
  }

  static constexpr size_t kAxes = 2 * kStageAxes;
  const RowView& view_;
  const std::string path_;
  const DerivedStamp stamp_;
  const int threads_;
  const Progress& progress_;
  const std::function<bool()>& interrupted_;
  Clusters clusters_;
  std::unique_ptr<Residuals> residuals_;
  std::vector<float> sample_;
  std::vector<uint32_t> sample_owner_;
  ScanBasis basis_;
  std::vector<float> steps_;
  StageCoder first_, second_;
  CodesMeta meta_;
  std::unique_ptr<DerivedWriter> writer_;
  std::unique_ptr<Scratch> kept_;
  std::vector<uint32_t> first_group_, order_;
};

}  // namespace

Status SealCodes(const RowView& view, const std::string& path, const DerivedStamp& stamp, int threads,
                 const Progress& progress, const std::function<bool()>& interrupted) {
  try {
    return Sealer(view, path, stamp, threads, progress, interrupted).Run();
  } catch (const std::bad_alloc&) {
    return Status::IOError("sealing vectors: out of memory");
  }
}

}  // namespace pymemstore
