#include "thread_pool.hpp"

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headway {
namespace {

constexpr int kSpins = 4000;  // about 50 to 100 microseconds of pauses

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Done> bool spin_until(Done done) {
  for (int i = 0; i < kSpins; i++) {
    if (done()) return true;
    pause();
  }
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int size) {
  for (int worker = 1; worker < size; worker++) threads_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  jobs_++;
  jobs_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::run(const std::function<void(int)>& job) {
  job_ = &job;
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  job(0);
  barrier();
}

void ThreadPool::barrier() {
  if (threads_.empty()) return;
  const uint32_t meeting = meetings_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(size())) {
    arrived_.store(0, std::memory_order_relaxed);
    meetings_.fetch_add(1, std::memory_order_release);
    return;
  }
  auto met = [&] { return meetings_.load(std::memory_order_acquire) != meeting; };
  while (!spin_until(met)) std::this_thread::yield();
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  while (true) {
    auto called = [&] { return jobs_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(called)) jobs_.wait(seen, std::memory_order_acquire);
    seen = jobs_.load(std::memory_order_acquire);
    if (stop_) return;
    (*job_)(worker);
    barrier();
  }
}

}  // namespace headway
