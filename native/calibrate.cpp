#include "calibrate.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "pack.hpp"

namespace headway {
namespace {

constexpr int kRounds = 5;
constexpr int kDotIterations = 30000;

// Seconds of the fastest of a few rounds: the others were disturbed.
template <class F> double fastest(ThreadPool& pool, F job) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; round++) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(job);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

double read_bandwidth(ThreadPool& pool, size_t bytes) {
  const size_t share = bytes / size_t(pool.size()) / 64 * 64;
  Memory memory(share * size_t(pool.size()));
  std::vector<uint64_t> sums(size_t(pool.size()));
  pool.run([&](int worker) { std::fill_n(memory.data() + share * size_t(worker), share, uint8_t(1)); });
  const double seconds = fastest(pool, [&](int worker) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(memory.data() + share * size_t(worker));
    uint64_t sum[8] = {};
    for (size_t i = 0; i < share / 8; i += 8)
      for (size_t j = 0; j < 8; j++) sum[j] += words[i + j];
    sums[size_t(worker)] = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
  });
  return double(memory.size()) / seconds;
}

double int8_rate(ThreadPool& pool, const Kernels& kernels) {
  const double seconds = fastest(pool, [&](int) { kernels.int8_operations(kDotIterations); });
  return double(kernels.int8_operations(0)) * kDotIterations * pool.size() / seconds;
}

}  // namespace headway
