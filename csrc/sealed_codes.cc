#include "sealed_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "chunk_runner.h"
#include "distance.h"
#include "scan_math.h"
#include "simd_kernels.h"

namespace pymemstore {
namespace {

constexpr size_t kQueriesAtOnce = 256;
constexpr uint32_t kChunkClusters = 64;
constexpr size_t kListed = 512;         // groups that are scanned together
constexpr size_t kSurvivorsAtOnce = 512;
constexpr size_t kFetchAhead = 4;       // rows that are fetched ahead for the canonical score
constexpr size_t kLeastBatch = 8;       // queries that pay for batch_groups
constexpr double kRowsPerThread = 2e5;  // row x query pairs that pay for a thread
// Taken off thresholds for the kernels' float32 steps (at most nine roundings of values below 4) and for the
// canonical score's own rounding.
constexpr double kStepMargin = 6e-6;
// For the float32 steps of q.c (three roundings of values below 2), and of a sum with it.
constexpr double kBaseMargin = 1e-6;

// A stage's weights and factors for a query. `margin` is what its bound may lack.
struct Stage {
  StageQuery q{};
  double margin = 0;
};

struct Prepared {
  alignas(64) int8_t weights1[kStageAxes], weights2[kStageAxes];
  Stage stage1, stage2;
  double norm = 0;
  float radius_factor = 0;   // of |r| in the bound of a whole group
  CodedQuery coded;          // for centroids and int8 rows
  double limit = 0;          // tau - kScoreSlack
  float least0 = 0, least1 = 0, least2 = 0;
};

// A batch for batch_groups. Its weights have one scale for both stages, so its bound is a little looser.
struct PreparedBatch {
  size_t blocks = 0;
  std::vector<int8_t> weights;
  std::vector<float> error1, error2, rest;   // of each query, in units of its scale
  std::vector<double> inverse_scale, least;  // need = least - base * inverse_scale
};

}  // namespace

// Scans chunks of clusters for a batch of queries.
class SealedWorker {
 public:
  SealedWorker(const SealedCodes& codes, const RowView& view, const float* queries, const std::vector<Prepared>& prepared,
               const PreparedBatch& batch, std::vector<ScoredRow>* results)
      : codes_(codes), view_(view), queries_(queries), prepared_(prepared), batch_(batch), results_(results),
        kernels_(ActiveKernels()), pending_(prepared.size()) {}

  void Scan(uint32_t first, uint32_t end) {
    const size_t count = end - first, n = prepared_.size();
    clusters_.resize(count);
    for (size_t i = 0; i < count; ++i) clusters_[i] = first + static_cast<uint32_t>(i);
    dots_.resize(std::max(count, dots_.size()));
    if (batch_.blocks > 0) cluster_bases_.resize(count * n);
    for (size_t j = 0; j < n; ++j) {
      Bases(j, first, count);
      if (batch_.blocks > 0) {
        for (size_t i = 0; i < count; ++i) cluster_bases_[i * n + j] = near_[i];
        continue;
      }
      const Prepared& p = prepared_[j];
      for (size_t i = 0; i < count; ++i) {
        if (near_[i] + p.radius_factor * codes_.widest_[first + i] < p.least0) continue;
        ListCluster(j, first + static_cast<uint32_t>(i), near_[i]);
      }
      ScanListed(j);
      Finish(j);
    }
    if (batch_.blocks == 0) return;
    for (size_t i = 0; i < count; ++i) ScanBatch(first + static_cast<uint32_t>(i), &cluster_bases_[i * n]);
    for (size_t j = 0; j < n; ++j) {
      ScanPending(j);
      Finish(j);
    }
  }

  ScanStats stats;

 private:
  // near_[i] = an upper bound of q.c for the clusters first + i.
  void Bases(size_t j, uint32_t first, size_t count) {
    const Prepared& p = prepared_[j];
    const size_t padded = WholeStride(codes_.dim()) - 8;
    near_.resize(count);
    kernels_.dot_codes(codes_.centroids_, padded, padded, clusters_.data(), count, p.coded.codes2.data(), dots_.data());
    const float scale = static_cast<float>(p.coded.scale2);
    const float slack = static_cast<float>(p.coded.slack2 * codes_.meta_.max_centroid + kBaseMargin);
    const float* scales = codes_.centroid_scales_ + first;
    for (size_t i = 0; i < count; ++i) near_[i] = scale * scales[i] * static_cast<float>(dots_[i]) + slack;
  }

  // Lists the groups of a cluster that may hold a hit.
  void ListCluster(size_t j, uint32_t cluster, float base) {
    const uint32_t end = codes_.clusters_[cluster + 1];
    const Prepared& p = prepared_[j];
    for (uint32_t g = codes_.clusters_[cluster]; g < end; ++g) {
      if (base + p.radius_factor * codes_.radii_[g] < p.least0) break;  // radii fall within a cluster
      groups_[listed_] = g;
      bases_[listed_] = base;
      if (++listed_ == kListed) ScanListed(j);
    }
  }

  void ScanListed(size_t j) {
    if (listed_ == 0) return;
    const Prepared& p = prepared_[j];
    stats.rows_scanned += static_cast<uint64_t>(listed_) * kGroupRows;
    kernels_.scan_stage(codes_.stage1_, groups_, bases_, listed_, p.stage1.q, p.least1, masks_);
    size_t found = 0;
    for (size_t i = 0; i < listed_; ++i) {
      groups_[found] = groups_[i];
      bases_[found] = bases_[i];
      first_masks_[found] = masks_[i];
      found += masks_[i] != 0;
    }
    listed_ = 0;
    ScanSecond(j, found, true);
  }

  // Rows of groups_[0, count) that pass the second stage wait for the next; `first`: and whose bits are set in
  // first_masks_.
  void ScanSecond(size_t j, size_t count, bool first) {
    if (count == 0) return;
    const Prepared& p = prepared_[j];
    if (codes_.stage2_ != nullptr) {
      kernels_.scan_stages(codes_.stage1_, codes_.stage2_, groups_, bases_, count, p.stage1.q, p.stage2.q, p.least2, masks_);
      for (size_t i = 0; i < count; ++i) first_masks_[i] = first ? first_masks_[i] & masks_[i] : masks_[i];
    } else if (!first) {
      kernels_.scan_stage(codes_.stage1_, groups_, bases_, count, p.stage1.q, p.least1, first_masks_);
    }
    for (size_t i = 0; i < count; ++i) {
      if (first_masks_[i] != 0) __builtin_prefetch(codes_.rows_ + static_cast<size_t>(groups_[i]) * kGroupRows);
    }
    for (size_t i = 0; i < count; ++i) {
      for (unsigned m = first_masks_[i]; m != 0; m &= m - 1) {
        const uint32_t row = codes_.rows_[static_cast<size_t>(groups_[i]) * kGroupRows + static_cast<size_t>(__builtin_ctz(m))];
        // Padding, or newer than the snapshot; a damaged file must not lead out of it either.
        if (row < view_.rows && row < codes_.file_->rows()) waiting_.push_back(row);
      }
    }
    if (waiting_.size() >= kSurvivorsAtOnce) Finish(j);
  }

  // Leaves in pending_ the groups of a cluster that may hold a hit, for each query of the batch.
  void ScanBatch(uint32_t cluster, const float* bases) {
    const size_t n = prepared_.size(), blocks = batch_.blocks;
    uint32_t begin = codes_.clusters_[cluster];
    const uint32_t end = codes_.clusters_[cluster + 1];
    if (begin == end) return;
    need_.assign(blocks * 16, 0.0F);
    wanted_.assign(blocks, 0);
    uint64_t asked = 0;
    float least_radius = HUGE_VALF;
    for (size_t j = 0; j < n; ++j) {
      const Prepared& p = prepared_[j];
      const float radius = (p.least0 - bases[j]) / p.radius_factor;
      if (codes_.widest_[cluster] < radius) continue;
      least_radius = std::min(least_radius, radius);
      wanted_[j / 16] = static_cast<uint16_t>(wanted_[j / 16] | 1u << j % 16);
      need_[j] = static_cast<float>(batch_.least[j] - static_cast<double>(bases[j]) * batch_.inverse_scale[j]);
      ++asked;
    }
    if (asked == 0) return;
    const BatchQueries batch = {blocks, batch_.weights.data(), wanted_.data(), need_.data(), batch_.error1.data(),
                                batch_.error2.data(), batch_.rest.data()};
    const size_t bytes1 = StageBytes(codes_.meta_.bits1), bytes2 = codes_.stage2_ ? StageBytes(codes_.meta_.bits2) : 0;
    constexpr uint32_t kAtOnce = 64;
    batch_masks_.resize(kAtOnce * blocks);
    for (; begin < end && !(codes_.radii_[begin] < least_radius); begin += kAtOnce) {
      const uint32_t count = std::min(kAtOnce, end - begin);
      kernels_.batch_groups(codes_.stage1_ + begin * bytes1, codes_.meta_.bits1,
                            codes_.stage2_ ? codes_.stage2_ + begin * bytes2 : nullptr, codes_.meta_.bits2, count, batch,
                            batch_masks_.data());
      stats.rows_scanned += asked * count * kGroupRows;
      for (uint32_t i = 0; i < count; ++i) {
        for (size_t b = 0; b < blocks; ++b) {
          for (unsigned m = batch_masks_[i * blocks + b]; m != 0; m &= m - 1) {
            const size_t j = b * 16 + static_cast<size_t>(__builtin_ctz(m));
            pending_[j].push_back({begin + i, bases[j]});
          }
        }
      }
    }
  }

  void ScanPending(size_t j) {
    std::vector<Pending>& all = pending_[j];
    for (size_t from = 0; from < all.size(); from += kListed) {
      const size_t count = std::min(kListed, all.size() - from);
      for (size_t i = 0; i < count; ++i) {
        groups_[i] = all[from + i].group;
        bases_[i] = all[from + i].base;
      }
      ScanSecond(j, count, false);
    }
    all.clear();
  }

  // The int8 rows, then the canonical scores, of what the stages let through.
  void Finish(size_t j) {
    std::vector<uint32_t>& waiting = waiting_;
    if (waiting.empty()) return;
    const Prepared& p = prepared_[j];
    const size_t stride = WholeStride(codes_.dim()), padded = stride - 8;
    dots_.resize(std::max(dots_.size(), waiting.size()));
    kernels_.dot_codes(codes_.whole_, stride, padded, waiting.data(), waiting.size(), p.coded.codes2.data(), dots_.data());
    size_t left = 0;
    for (size_t i = 0; i < waiting.size(); ++i) {
      float about[2];  // scale and error
      std::memcpy(about, codes_.whole(waiting[i]) + padded, sizeof about);
      const double scale = static_cast<double>(about[0]), error = static_cast<double>(about[1]);
      const double bound = p.coded.scale2 * scale * dots_[i] + p.coded.slack2 * (codes_.meta_.max_norm + error) +
                           p.norm * error + 1e-9;
      if (!(bound < p.limit)) waiting[left++] = waiting[i];
    }
    for (size_t i = 0; i < left; ++i) {
      if (i + kFetchAhead < left) {
        const uint8_t* next = reinterpret_cast<const uint8_t*>(view_.row(waiting[i + kFetchAhead]));
        for (size_t at = 0; at < view_.dim * sizeof(float); at += 64) __builtin_prefetch(next + at);
      }
      const double score = kernels_.canonical_dot(queries_ + j * view_.dim, view_.row(waiting[i]), view_.dim);
      if (score >= p.limit) results_[j].push_back({waiting[i], score});
    }
    stats.rows_rescored += left;
    waiting.clear();
  }

  const SealedCodes& codes_;
  const RowView& view_;
  const float* queries_;
  struct Pending {
    uint32_t group;
    float base;
  };
  const std::vector<Prepared>& prepared_;
  const PreparedBatch& batch_;
  std::vector<ScoredRow>* results_;
  const Kernels& kernels_;
  std::vector<uint32_t> clusters_;
  std::vector<int32_t> dots_;
  std::vector<float> near_, cluster_bases_;     // of the chunk; [cluster][query]
  std::vector<uint32_t> waiting_;               // rows that passed the stages
  std::vector<std::vector<Pending>> pending_;   // of each query
  std::vector<float> need_;
  std::vector<uint16_t> wanted_, batch_masks_;
  size_t listed_ = 0;
  uint32_t groups_[kListed];
  float bases_[kListed];
  uint16_t masks_[kListed], first_masks_[kListed];
};

namespace {

// Weights of a stage: coordinates times steps, in 8 bits.
void PrepareStage(const float* z, const float* steps, int32_t bits, double code_norm, double value_norm,
                  double rotate_slack, int8_t* weights, Stage* out) {
  float w[kStageAxes];
  double slack = 0;
  for (size_t i = 0; i < kStageAxes; ++i) {
    const double exact = static_cast<double>(z[i]) * static_cast<double>(steps[i]);
    w[i] = static_cast<float>(exact);
    slack += std::fabs(exact - static_cast<double>(w[i]));
  }
  const float scale = ScaleFor(w, kStageAxes, 127);
  double unused;
  const double error = Quantise(w, kStageAxes, scale, 127, weights, &unused) + slack;
  int32_t sum = 0;
  for (size_t i = 0; i < kStageAxes; ++i) sum += weights[i];
  out->q.codes = weights;
  out->q.bits = bits;
  out->q.offset = ((1 << bits) - 1) * sum;
  out->q.scale = scale / 2;
  out->margin = error * code_norm + rotate_slack * value_norm;
}

void Prepare(const ScanBasis& basis, const CodesMeta& meta, const float* steps, const float* q, double tau,
             double softness, Prepared* p) {
  p->coded = CodeWholeQuery(q, basis.dim);
  p->norm = p->coded.norm;
  p->limit = tau - kScoreSlack;
  float z[2 * kStageAxes] = {};
  basis.Rotate(q, z);
  const double rotate_slack = basis.rotate_error * p->norm;
  const double norm1 = Norm(z, kStageAxes) * kUp, norm12 = Norm(z, 2 * kStageAxes) * kUp;
  const double norm2 = Norm(z + kStageAxes, kStageAxes) * kUp;
  PrepareStage(z, steps, meta.bits1, meta.code_norm1, meta.value_norm1, rotate_slack, p->weights1, &p->stage1);
  const double outside = meta.gram_error * p->norm * meta.max_residual;
  p->radius_factor = RoundUp(softness * p->norm);
  p->least0 = RoundDown(p->limit - kBaseMargin);
  p->stage1.q.error = RoundUp(softness * (norm1 + rotate_slack) * static_cast<double>(meta.error1_unit));
  p->stage1.q.rest = RoundUp(softness * RestNorm(basis, p->norm, norm1 / kUp) * static_cast<double>(meta.rest1_unit));
  p->least1 = RoundDown(p->limit - p->stage1.margin - outside - kStepMargin);
  if (meta.bits2 == 0) return;
  PrepareStage(z + kStageAxes, steps + kStageAxes, meta.bits2, meta.code_norm2, meta.value_norm2, rotate_slack,
               p->weights2, &p->stage2);
  p->stage2.q.error = RoundUp(softness * (norm2 + rotate_slack) * static_cast<double>(meta.error2_unit));
  p->stage2.q.rest = RoundUp(softness * RestNorm(basis, p->norm, norm12 / kUp) * static_cast<double>(meta.rest2_unit));
  p->least2 = RoundDown(p->limit - p->stage1.margin - p->stage2.margin - outside - kStepMargin);
}

void PrepareBatch(const ScanBasis& basis, const CodesMeta& meta, const float* steps, const float* queries,
                  const std::vector<Prepared>& prepared, PreparedBatch* out) {
  const size_t n = prepared.size(), axes = meta.bits2 ? 2 * kStageAxes : kStageAxes;
  out->blocks = (n + 15) / 16;
  out->weights.assign(out->blocks * 2048, 0);
  for (auto* values : {&out->error1, &out->error2, &out->rest}) values->assign(out->blocks * 16, 0.0F);
  const double code_norm = std::hypot(meta.code_norm1, meta.code_norm2) * kUp;
  for (size_t j = 0; j < n; ++j) {
    const Prepared& p = prepared[j];
    float z[2 * kStageAxes] = {}, w[2 * kStageAxes];
    int8_t weights[2 * kStageAxes] = {};
    basis.Rotate(queries + j * basis.dim, z);
    double slack = 0;
    for (size_t i = 0; i < axes; ++i) {
      const double exact = static_cast<double>(z[i]) * static_cast<double>(steps[i]);
      w[i] = static_cast<float>(exact);
      slack += std::fabs(exact - static_cast<double>(w[i]));
    }
    const float scale = ScaleFor(w, axes, 127);
    double unused;
    const double error = Quantise(w, axes, scale, 127, weights, &unused) + slack;
    double middle = 0;  // what the levels' offset adds to the dot product
    for (size_t i = 0; i < axes; ++i) {
      middle += ((1 << (i < kStageAxes ? meta.bits1 : meta.bits2)) - 1) / 2.0 * weights[i];
      const size_t at = j / 16 * 2048 + i / kStageAxes * 1024 + i % kStageAxes / 4 * 64 + j % 16 * 4 + i % 4;
      out->weights[at] = weights[i];
    }
    const double margin = error * code_norm + basis.rotate_error * p.norm * (meta.value_norm1 + meta.value_norm2) +
                          meta.gram_error * p.norm * meta.max_residual + kStepMargin;
    const double inverse = 1 / static_cast<double>(scale);
    out->inverse_scale.push_back(inverse);
    out->least.push_back((p.limit - margin) * inverse + middle);
    const StageQuery &q1 = p.stage1.q, &q2 = p.stage2.q;
    out->error1[j] = RoundUp(static_cast<double>(q1.error) * inverse);
    out->error2[j] = meta.bits2 ? RoundUp(static_cast<double>(q2.error) * inverse) : 0;
    out->rest[j] = RoundUp(static_cast<double>(meta.bits2 ? q2.rest : q1.rest) * inverse);
  }
}

}  // namespace

Result<std::shared_ptr<const SealedCodes>> SealedCodes::Open(const std::string& path, const DerivedStamp& stamp) {
  PMS_ASSIGN_OR_RETURN(std::shared_ptr<const DerivedFile> file, DerivedFile::Open(path, stamp, DerivedType::kCodes));
  std::shared_ptr<SealedCodes> codes(new SealedCodes(std::move(file)));
  codes->basis_.dim = stamp.dim;
  PMS_RETURN_IF_ERROR(codes->Load());
  return std::shared_ptr<const SealedCodes>(std::move(codes));
}

Status SealedCodes::Load() {
  const auto damaged = [&](const char* what) {
    return Status::Corruption(file_->path() + " is damaged: " + what);
  };
  if (file_->sections() != kCodesSections || file_->Array<CodesMeta>(kCodesMeta, 1) == nullptr)
    return damaged("it lacks a section");
  // The small sections are read whole, so they are checked whole.
  for (size_t s : {kCodesMeta, kCodesAxes, kCodesSteps, kCodesCentroids, kCodesCentroidScales, kCodesClusters})
    if (!file_->SectionIsWhole(s)) return damaged("a checksum does not fit");
  meta_ = *file_->Array<CodesMeta>(kCodesMeta, 1);
  const uint32_t dim = basis_.dim;
  const bool identity = meta_.identity != 0;
  if (meta_.clusters == 0 || (meta_.bits1 != 2 && meta_.bits1 != 4) ||
      (meta_.bits2 != 0 && meta_.bits2 != 2 && meta_.bits2 != 4) || meta_.axes > 2 * kStageAxes || meta_.axes == 0 ||
      meta_.axes > dim || (identity && meta_.axes != dim))
    return damaged("its numbers don't fit");
  const float* axes = file_->Array<float>(kCodesAxes, identity ? 0 : static_cast<uint64_t>(meta_.axes) * dim);
  steps_ = file_->Array<float>(kCodesSteps, 2 * kStageAxes);
  const size_t stride = WholeStride(dim);
  const uint64_t groups = meta_.groups;
  centroids_ = file_->Array<int8_t>(kCodesCentroids, meta_.clusters * (stride - 8));
  centroid_scales_ = file_->Array<float>(kCodesCentroidScales, meta_.clusters);
  clusters_ = file_->Array<uint32_t>(kCodesClusters, meta_.clusters + uint64_t{1});
  radii_ = file_->Array<float>(kCodesRadii, groups);
  rows_ = file_->Array<uint32_t>(kCodesRows, groups * kGroupRows);
  stage1_ = file_->Array<uint8_t>(kCodesStage1, groups * StageBytes(meta_.bits1));
  const uint8_t* stage2 = file_->Array<uint8_t>(kCodesStage2, meta_.bits2 ? groups * StageBytes(meta_.bits2) : 0);
  whole_ = file_->Array<int8_t>(kCodesWhole, file_->rows() * stride);
  if (!axes || !steps_ || !centroids_ || !centroid_scales_ || !clusters_ || !radii_ || !rows_ || !stage1_ || !stage2 ||
      !whole_)
    return damaged("a section has another length than it must");
  stage2_ = meta_.bits2 ? stage2 : nullptr;
  for (uint32_t i = 0; i < meta_.clusters; ++i)
    if (clusters_[i] > clusters_[i + 1]) return damaged("its clusters don't follow each other");
  for (uint32_t i = 0; i < meta_.clusters; ++i)
    widest_.push_back(clusters_[i] < clusters_[i + 1] && clusters_[i] < groups ? radii_[clusters_[i]] : -HUGE_VALF);
  if (clusters_[0] != 0 || clusters_[meta_.clusters] != groups) return damaged("its clusters don't cover it");
  // |z1| e1 + rho1(q) rho1(r) <= |q| |(e1, rho1)|, by Cauchy and Schwarz; stage 2 alike.
  const auto most = [](float unit) { return 255 * static_cast<double>(unit); };
  slack_ = std::max({meta_.max_residual, std::hypot(most(meta_.error1_unit), most(meta_.rest1_unit)),
                     std::hypot(most(meta_.error1_unit), most(meta_.error2_unit), most(meta_.rest2_unit))});
  basis_.k = meta_.axes;
  basis_.padded_k = (meta_.axes + 7) / 8 * 8;
  basis_.identity = identity;
  basis_.axes.assign(axes, axes + (identity ? 0 : static_cast<size_t>(meta_.axes) * dim));
  basis_.gram_error = meta_.gram_error;
  basis_.rotate_error = meta_.rotate_error;
  return Status::Ok();
}

bool SealedCodes::IsOf(uint64_t row, const float* v) const {
  float about[2];  // scale and error
  std::memcpy(about, whole(row) + WholeStride(dim()) - 8, sizeof about);
  double squares = 0;
  for (uint32_t i = 0; i < dim(); ++i) {
    const double e = static_cast<double>(v[i]) - static_cast<double>(about[0]) * whole(row)[i];
    squares += e * e;
  }
  const double error = static_cast<double>(about[1]);
  // Damaged rows are coded as zeros.
  return std::sqrt(squares) <= error * (1 + 1e-6) + 1e-9 || !(Norm(v, dim()) <= kMostRowNorm);
}

Status SealedCodes::WithinThreshold(const RowView& view, const float* queries, size_t n, const double* taus,
                                    double softness, int threads, const std::function<bool()>& interrupted,
                                    std::vector<std::vector<ScoredRow>>* out, ScanStats* stats) const {
  for (size_t first = 0; first < n; first += kQueriesAtOnce) {
    const size_t count = std::min(kQueriesAtOnce, n - first);
    std::vector<Prepared> prepared(count);
    const float* asked = queries + first * view.dim;
    for (size_t j = 0; j < count; ++j) {
      // A row's own vector has a bound of 1 at least, and of 1 - (1 - softness) slack_ with softened terms.
      const double tau = taus[first + j];
      const double reach = 1 - std::max(1 - tau, 0.0) / (slack_ * kMostRowNorm);
      const double soft = softness < 1 ? std::max(softness, reach) : 1;
      Prepare(basis_, meta_, steps_, asked + j * view.dim, tau, soft, &prepared[j]);
    }
    PreparedBatch batch;
    // Softened bounds are none: what a soft scan finds must not depend on who else asks.
    if (count >= kLeastBatch && softness >= 1 && ActiveKernels().batch_groups != nullptr)
      PrepareBatch(basis_, meta_, steps_, asked, prepared, &batch);
    const uint64_t chunks = (meta_.clusters + kChunkClusters - 1) / kChunkClusters;
    const double work = static_cast<double>(rows()) * static_cast<double>(count) / kRowsPerThread;
    const size_t helpers = static_cast<size_t>(
        std::clamp(std::min(work, static_cast<double>(std::max(threads, 1))) - 1, 0.0, 255.0));
    std::vector<std::vector<std::vector<ScoredRow>>> results(helpers, std::vector<std::vector<ScoredRow>>(count));
    std::vector<std::unique_ptr<SealedWorker>> workers(helpers + 1);
    PMS_RETURN_IF_ERROR(RunChunks(chunks, helpers, interrupted, [&](size_t worker, uint64_t chunk) {
      if (!workers[worker])
        workers[worker] = std::make_unique<SealedWorker>(
            *this, view, asked, prepared, batch, worker == 0 ? out->data() + first : results[worker - 1].data());
      const uint32_t begin = static_cast<uint32_t>(chunk) * kChunkClusters;
      workers[worker]->Scan(begin, std::min(begin + kChunkClusters, meta_.clusters));
      return Status::Ok();
    }));
    for (size_t w = 0; w <= helpers; ++w) {
      if (!workers[w]) continue;
      stats->rows_scanned += workers[w]->stats.rows_scanned;
      stats->rows_rescored += workers[w]->stats.rows_rescored;
      for (size_t j = 0; w > 0 && j < count; ++j) {
        auto& all = (*out)[first + j];
        all.insert(all.end(), results[w - 1][j].begin(), results[w - 1][j].end());
      }
    }
    for (size_t j = 0; j < count; ++j) {
      auto& all = (*out)[first + j];
      std::sort(all.begin(), all.end(), [](const ScoredRow& a, const ScoredRow& b) { return a.row < b.row; });
      // In a damaged file a row may stand twice.
      const auto same = [](const ScoredRow& a, const ScoredRow& b) { return a.row == b.row; };
      all.erase(std::unique(all.begin(), all.end(), same), all.end());
    }
  }
  return Status::Ok();
}

}  // namespace pymemstore
