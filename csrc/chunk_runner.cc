#include "chunk_runner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace pymemstore {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(20);

struct Shared {
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mu;
  std::condition_variable cv;
  size_t running = 0;          // under mu
  bool out_of_memory = false;  // under mu
  Status status;               // under mu: the first that failed

  bool Take(uint64_t chunks, uint64_t* chunk) {
    if (stop.load(std::memory_order_relaxed)) return false;
    *chunk = next.fetch_add(1, std::memory_order_relaxed);
    return *chunk < chunks;
  }
  void Fail(const Status& failed) {
    stop = true;
    std::lock_guard<std::mutex> lock(mu);
    if (status.ok()) status = failed;
  }
};

}  // namespace

Status RunChunks(uint64_t chunks, size_t helpers, const std::function<bool()>& interrupted,
                 const std::function<Status(size_t, uint64_t)>& work) {
  Shared shared;
  std::vector<std::thread> threads;
  threads.reserve(helpers);
  // Threads must be joined on every path out, also when `interrupted` or `work` throws.
  struct Joiner {
    Shared* shared;
    std::vector<std::thread>* threads;
    ~Joiner() {
      shared->stop = true;
      for (std::thread& t : *threads) t.join();
    }
  };
  bool stopped = false;
  {
    Joiner joiner{&shared, &threads};
    const auto help = [&](size_t worker) {
      bool out_of_memory = false;
      try {
        uint64_t chunk;
        while (shared.Take(chunks, &chunk)) {
          const Status status = work(worker, chunk);
          if (!status.ok()) shared.Fail(status);
        }
      } catch (const std::bad_alloc&) {
        out_of_memory = true;
        shared.stop = true;
      }
      std::lock_guard<std::mutex> lock(shared.mu);
      shared.out_of_memory |= out_of_memory;
      --shared.running;
      shared.cv.notify_one();
    };
    for (size_t i = 0; i < helpers && i + 1 < chunks; ++i) {
      {
        std::lock_guard<std::mutex> lock(shared.mu);
        ++shared.running;
      }
      try {
        threads.emplace_back(help, i + 1);
      } catch (const std::system_error&) {  // no more threads to be had: go on with fewer
        std::lock_guard<std::mutex> lock(shared.mu);
        --shared.running;
        break;
      }
    }
    auto polled = std::chrono::steady_clock::now();
    uint64_t chunk;
    while (!stopped && shared.Take(chunks, &chunk)) {
      const Status status = work(0, chunk);
      if (!status.ok()) shared.Fail(status);
      if (!interrupted) continue;
      const auto now = std::chrono::steady_clock::now();
      if (now - polled >= kPollInterval) {
        polled = now;
        stopped = interrupted();
      }
    }
    for (bool waiting = !threads.empty(); waiting;) {
      if (stopped) shared.stop = true;
      {
        std::unique_lock<std::mutex> lock(shared.mu);
        waiting = !shared.cv.wait_for(lock, kPollInterval, [&] { return shared.running == 0; });
      }
      if (waiting && !stopped) stopped = interrupted && interrupted();
    }
  }
  if (stopped) return Status::Interrupted();
  if (shared.out_of_memory) throw std::bad_alloc();
  return shared.status;
}

}  // namespace pymemstore
