// A fixed team of threads that runs one job at a time and meets at barriers inside it.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace headway {

// Waiting spins for a while, since the next phase is microseconds away, then yields: on a machine shared with the HTTP loop
// pure spinning would keep the very thread from running that is being waited for. Between jobs workers sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int size);
  ~ThreadPool();
  int size() const { return int(threads_.size()) + 1; }

  // Calls job(worker) on every worker, the caller being worker 0, and returns when all are done.
  void run(const std::function<void(int)>& job);

  // Every worker of the running job must come here before any leaves.
  void barrier();

 private:
  void work(int worker);

  std::vector<std::thread> threads_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<uint32_t> jobs_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> meetings_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace headway
