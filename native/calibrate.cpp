#include "calibrate.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <vector>

#include "pack.hpp"

namespace headway {
namespace {

constexpr int kRounds = 5;
constexpr double kSeconds = 0.05;
constexpr int kDotIterations = 30000;
constexpr size_t kPrefetchWords = 128;  // a KiB ahead

// Seconds of the fastest round: the others were disturbed. A few at least, and short ones for as long as a disturbance lasts.
template <class F> double fastest(ThreadPool& pool, F job) {
  double best = std::numeric_limits<double>::infinity(), total = 0;
  for (int round = 0; round < kRounds || total < kSeconds; round++) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(job);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

// The sum of `count` words, read as `Streams` streams side by side. Which number is fastest depends on where the words are: one
// from a cache, several from memory, where each has requests of its own under way.
template <size_t Streams> uint64_t sum(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};
  const size_t length = count / Streams / 8 * 8;
  for (size_t i = 0; i < length; i += 8)
    for (size_t stream = 0; stream < Streams; stream++) {
      const uint64_t* line = words + stream * length + i;
      if (Streams > 1) __builtin_prefetch(line + kPrefetchWords);
      for (size_t j = 0; j < 8; j++) sums[j] += line[j];
    }
  return std::accumulate(sums, sums + 8, uint64_t(0));
}

}  // namespace

double read_bandwidth(ThreadPool& pool, size_t bytes) {
  const size_t share = std::max<size_t>(bytes / size_t(pool.size()), 4096) / 4096 * 4096;
  Memory memory(share * size_t(pool.size()));
  std::vector<uint64_t> sums(size_t(pool.size()));
  pool.run([&](int worker) { std::fill_n(memory.data() + share * size_t(worker), share, uint8_t(1)); });
  const auto seconds = [&](auto sum_of) {
    return fastest(pool, [&](int worker) {
      const uint8_t* own = memory.data() + share * size_t(worker);
      sums[size_t(worker)] += sum_of(reinterpret_cast<const uint64_t*>(own), share / 8);
    });
  };
  return double(memory.size()) / std::min(seconds(sum<1>), seconds(sum<4>));
}

double int8_rate(ThreadPool& pool, const Kernels& kernels) {
  const double seconds = fastest(pool, [&](int) { kernels.int8_operations(kDotIterations); });
  return double(kernels.int8_operations(0)) * kDotIterations * pool.size() / seconds;
}

}  // namespace headway
