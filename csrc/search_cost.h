// What searches cost, to choose between them: a prior measured on one machine, corrected by what queries take here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace pymemstore {

class SearchCost {
 public:
  // A complete answer may take this long, in seconds a query, before "auto" takes an approximate one.
  static constexpr double kPatience = 0.025;

  // Seconds a query that an exact search of `rows` sealed rows is expected to take, `n` of them at once.
  double Exact(uint64_t rows, uint32_t dim, size_t n, double tau) const {
    return Prior(rows, dim, n, tau) * correction_.load(std::memory_order_relaxed);
  }
  // After a search that took `seconds` a query.
  void Learn(uint64_t rows, uint32_t dim, size_t n, double tau, double seconds) {
    const double prior = Prior(rows, dim, n, tau);
    if (!(prior > 0)) return;
    const double now = std::clamp(seconds / prior, 0.05, 20.0), old = correction_.load(std::memory_order_relaxed);
    correction_.store(old + (now - old) / 8, std::memory_order_relaxed);
  }

 private:
  // Nanoseconds a row at thresholds of .6, .7, .8, .9 and above, for one query at 256 dimensions (1 M rows, one core,
  // docs/search.md); at most half for more dimensions' sake, since the first stages read as much of any.
  static double Prior(uint64_t rows, uint32_t dim, size_t n, double tau) {
    constexpr double kNs[] = {4.5, 2.3, 1.6, 0.8};
    const double place = std::clamp((tau - 0.6) / 0.1, 0.0, 3.0);
    const size_t i = std::min<size_t>(static_cast<size_t>(place), 2);
    const double part = place - static_cast<double>(i);
    const double ns = kNs[i] * (1 - part) + kNs[i + 1] * part;
    return static_cast<double>(rows) * ns * 1e-9 * (0.5 + dim / 512.0) * (n >= 8 ? 0.35 : 1.0);
  }

  std::atomic<double> correction_{1.0};
};

}  // namespace pymemstore
