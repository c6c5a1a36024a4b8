#include "thread_pool.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace headway {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr int kPausesPerLook = 16;  // between two looks at the clock
constexpr Clock::duration kIdleSpin = microseconds(200), kLongestSpin = microseconds(100), kShortestSpin = microseconds(2);

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Done> bool spin_until(Done done, Clock::duration limit) {
  Clock::time_point end{};
  while (true) {
    for (int i = 0; i < kPausesPerLook; i++) {
      if (done()) return true;
      pause();
    }
    const auto now = Clock::now();
    if (end == Clock::time_point{}) end = now + limit;
    if (now >= end) return false;
  }
}

void pin([[maybe_unused]] std::thread& thread, int cpu) {
  bool done = false;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  done = pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set) == 0;
#endif
  if (!done) throw std::runtime_error("a thread cannot be pinned to processor " + std::to_string(cpu));
}

}  // namespace

ThreadPool::ThreadPool(int size, const std::vector<int>& cpus) {
  if (!cpus.empty() && int(cpus.size()) < size) throw std::invalid_argument("every worker needs a processor, or none");
  try {
    for (int worker = 1; worker < size; worker++) {
      threads_.emplace_back([this, worker] { work(worker); });
      if (!cpus.empty()) pin(threads_.back(), cpus[size_t(worker)]);
    }
  } catch (...) {
    stop();
    throw;
  }
}

void ThreadPool::stop() {
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

// A wait that spins in vain, because another program or a thread of this team has the processor of who is waited for, makes
// the next ones of this thread sleep sooner; each that does not lets them spin longer again. So a team that has its processors
// never sleeps inside a job, and one that shares them hands them over in microseconds.
void ThreadPool::barrier() {
  if (threads_.empty()) return;
  static thread_local Clock::duration spin = kLongestSpin;
  const uint32_t meeting = meetings_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(size())) {
    arrived_.store(0, std::memory_order_relaxed);
    meetings_.fetch_add(1, std::memory_order_release);
    meetings_.notify_all();
    return;
  }
  if (spin_until([&] { return meetings_.load(std::memory_order_acquire) != meeting; }, spin)) {
    spin = std::min(spin * 2, kLongestSpin);
    return;
  }
  spin = std::max(spin / 8, kShortestSpin);
  meetings_.wait(meeting, std::memory_order_acquire);
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  while (true) {
    auto called = [&] { return jobs_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(called, kIdleSpin)) jobs_.wait(seen, std::memory_order_acquire);
    seen = jobs_.load(std::memory_order_acquire);
    if (stop_) return;
    (*job_)(worker);
    barrier();
  }
}

}  // namespace headway
