#include "checksum.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace headway {
namespace {

// Any odd numbers of well-mixed bits: the golden ratio's, and one of SplitMix64's.
constexpr uint64_t kWord = 0x9E3779B97F4A7C15, kSum = 0xBF58476D1CE4E5B9;
constexpr size_t kStreams = 4;  // independent, so that one multiplication need not wait for another

// For a given sum every word has a result of its own, and for a given word every sum has. (The step of xxHash64, by Y. Collet.)
uint64_t fold(uint64_t sum, uint64_t word) { return std::rotl(sum + word * kWord, 31) * kSum; }

}  // namespace

uint64_t checksum(const uint8_t* data, size_t size) {
  uint64_t sums[kStreams] = {1, 2, 3, 4}, words[kStreams];
  const auto fold_words = [&] {
    for (size_t i = 0; i < kStreams; i++) sums[i] = fold(sums[i], words[i]);
  };
  const uint8_t* const end = data + size;
  for (; size_t(end - data) >= sizeof(words); data += sizeof(words)) {
    std::memcpy(words, data, sizeof(words));
    fold_words();
  }
  std::fill_n(words, kStreams, 0);
  std::memcpy(words, data, size_t(end - data));
  fold_words();
  uint64_t total = size;
  for (uint64_t sum : sums) total = fold(total, sum);
  return total;
}

}  // namespace headway
