// A fixed team of threads that runs one job at a time and meets at barriers inside it.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace headway {

// Waiting spins for a while, since the next phase is microseconds away, then sleeps: on a machine shared with others pure
// spinning would keep the very thread from running that is being waited for. How long a barrier spins is learned, see
// `barrier`. Between jobs workers spin for the time that a step's Python takes, then sleep.
class ThreadPool {
 public:
  // `cpus`: empty, or a processor for each worker. The first stays free, for the caller, whose thread is never pinned. Throws
  // std::runtime_error for a processor that this process may not use, or where threads cannot be pinned.
  explicit ThreadPool(int size, const std::vector<int>& cpus = {});
  ~ThreadPool() { stop(); }
  int size() const { return int(threads_.size()) + 1; }

  // Calls job(worker) on every worker, the caller being worker 0, and returns when all are done.
  void run(const std::function<void(int)>& job);

  // Every worker of the running job must come here before any leaves.
  void barrier();

 private:
  void work(int worker);
  void stop();

  std::vector<std::thread> threads_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<uint32_t> jobs_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> meetings_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace headway
