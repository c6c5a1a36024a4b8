#include "pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <sys/mman.h>

namespace headway {
namespace {

constexpr size_t kHugePage = size_t(2) << 20;

size_t aligned_size(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

int blocks_of(int n) { return (n + kLanes - 1) / kLanes; }

size_t data_bytes(Format format, int n, int k) {
  const size_t values = size_t(blocks_of(n)) * kLanes * k;
  switch (format) {
    case Format::f32: return values * 4;
    case Format::f16:
    case Format::bf16: return values * 2;
    case Format::q8: return values;
    case Format::q4: return values / 2;
  }
  return 0;
}

size_t scale_bytes(const void* scales, int n, int k, int group, bool wide) {
  return scales ? size_t(blocks_of(n)) * kLanes * (k / group) * (wide ? 4 : 2) : 0;
}

template <class T> void pack_scales(const void* from, uint8_t* to, int n, int groups) {
  const T* source = static_cast<const T*>(from);
  T* packed = reinterpret_cast<T*>(to);
  for (int row = 0; row < n; row++)
    for (int g = 0; g < groups; g++)
      packed[(size_t(row / kLanes) * groups + g) * kLanes + row % kLanes] = source[size_t(row) * groups + g];
}

void pack_q4(const uint8_t* q, uint8_t* to, int n, int k) {
  for (int row = 0; row < n; row++) {
    const int lane = row % kLanes;
    const uint8_t* source = q + size_t(row) * k;
    uint8_t* block = to + size_t(row / kLanes) * k * kLanes / 2;
    for (int g = 0; g < k / 32; g++, source += 32, block += 256)
      for (int i = 0; i < 16; i++) block[i / 4 * 64 + lane * 4 + i % 4] = uint8_t(source[i] | source[i + 16] << 4);
  }
}

void pack_q8(const uint8_t* q, uint8_t* to, int n, int k) {
  for (int row = 0; row < n; row++) {
    const uint8_t* source = q + size_t(row) * k;
    uint8_t* block = to + (size_t(row / kLanes) * k * kLanes) + row % kLanes * 4;
    for (int i = 0; i < k; i += 4) std::memcpy(block + size_t(i) * kLanes, source + i, 4);
  }
}

template <class T> void pack_dense(const void* from, uint8_t* to, int n, int k) {
  const T* source = static_cast<const T*>(from);
  T* packed = reinterpret_cast<T*>(to);
  for (int row = 0; row < n; row++)
    for (int i = 0; i < k; i++) packed[(size_t(row / kLanes) * k + i) * kLanes + row % kLanes] = source[size_t(row) * k + i];
}

float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = uint32_t(h & 0x7fff) << 13;
  const bool special = (h & 0x7c00) == 0x7c00;
  float value;
  const uint32_t widened = special ? magnitude | 0x7f800000u : magnitude;
  std::memcpy(&value, &widened, sizeof value);
  if (!special) value *= 0x1p112f;  // moved into place, exponent and mantissa are the value times 2^-112
  return sign ? -value : value;
}

struct ScaleReader {
  const void* values;
  bool wide;
  double operator[](size_t i) const {
    if (!values) return 0;
    return wide ? double(static_cast<const float*>(values)[i]) : double(half_to_float(static_cast<const uint16_t*>(values)[i]));
  }
};

}  // namespace

int fixed_panel(int k) {
  const int panels = (k + kFixedPanel - 1) / kFixedPanel;
  return (k / 64 + panels - 1) / panels * 64;
}

// Large memory comes from the system already zero and untouched: a KV pool costs pages only as they are used.
Memory::Memory(size_t bytes) : size_(bytes) {
  if (!bytes) return;
  const size_t whole = aligned_size(bytes, bytes >= kHugePage ? kHugePage : 64);
  if (bytes < kHugePage) {
    data_ = static_cast<uint8_t*>(std::aligned_alloc(64, whole));
    if (!data_) throw std::bad_alloc();
    std::memset(data_, 0, whole);
    return;
  }
  void* p = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(p, whole, MADV_HUGEPAGE);
#endif
  data_ = static_cast<uint8_t*>(p);
  mapped_ = whole;
}

Memory::~Memory() {
  if (mapped_) munmap(data_, mapped_);
  else std::free(data_);
}

Weight::Weight(const uint8_t* q, const void* scale, const void* minimum, int n, int k, int bits, int group, int zero,
               bool wide_scales, bool fixed_point, bool table)
    : data_(data_bytes(bits == 4 ? Format::q4 : Format::q8, n, k)),
      scale_(fixed_point && !table ? 0 : scale_bytes(scale, n, k, group, wide_scales)),
      minimum_(fixed_point && !table ? 0 : scale_bytes(minimum, n, k, group, wide_scales)),
      multiplier_(fixed_point ? scale_bytes(scale, n, k, group, false) : 0),
      offset_(fixed_point ? scale_bytes(minimum, n, k, group, false) : 0),
      unit_(fixed_point ? size_t(blocks_of(n)) * kLanes * ((k + fixed_panel(k) - 1) / fixed_panel(k)) * sizeof(float) : 0) {
  if (k % 32 || (group != 16 && group != 32)) throw std::invalid_argument("groups must be 16 or 32 inputs, and inputs a multiple of 32");
  if (group == 16 && (bits == 4 || minimum)) throw std::invalid_argument("groups of 16 need more than 4 bits and no minimum");
  if (minimum && zero) throw std::invalid_argument("a format has a zero point or a minimum, not both");
  const Format format = bits == 4 ? Format::q4 : Format::q8;
  if (format == Format::q4) pack_q4(q, data_.data(), n, k);
  else pack_q8(q, data_.data(), n, k);
  for (auto [from, to] : {std::pair{scale, &scale_}, std::pair{minimum, &minimum_}}) {
    if (!to->size()) continue;
    if (wide_scales) pack_scales<uint32_t>(from, to->data(), n, k / group);
    else pack_scales<uint16_t>(from, to->data(), n, k / group);
  }
  matrix_ = {format, n, k, group, float(zero), wide_scales, data_.data(), scale_.data(), minimum ? minimum_.data() : nullptr, {}};
  if (fixed_point) add_fixed_point(scale, minimum);
}

// The unit of a panel makes its largest weight 32767. Offsets are rounded so that a multiplier's own rounding does least harm:
// none in the middle of the range of q.
void Weight::add_fixed_point(const void* scale, const void* minimum) {
  constexpr int kMost = 15;
  const int n = matrix_.n, k = matrix_.k, groups = k / 32, panel = fixed_panel(k), panels = (k + panel - 1) / panel;
  if (matrix_.format != Format::q4 || k % 64) throw std::invalid_argument("fixed point is for 4 bits and inputs a multiple of 64");
  const ScaleReader scales{scale, matrix_.wide_scales}, minima{minimum, matrix_.wide_scales};
  int16_t *multiplier = reinterpret_cast<int16_t*>(multiplier_.data()), *offset = reinterpret_cast<int16_t*>(offset_.data());
  float* unit = reinterpret_cast<float*>(unit_.data());
  for (int row = 0; row < n; row++)
    for (int p = 0; p < panels; p++) {
      const int first = p * panel / 32, last = std::min(groups, first + panel / 32);
      const size_t in_file = size_t(row) * groups;
      double largest = 0;
      for (int g = first; g < last; g++) {
        const double s = scales[in_file + g], low = minima[in_file + g] - s * matrix_.zero;
        largest = std::max({largest, std::abs(low), std::abs(low + s * kMost)});
      }
      // Two steps below the largest 16-bit number, since multiplier and offset are each rounded.
      const double step = largest / (32767 - kMost - 1), inverse = step > 0 ? 1 / step : 0;
      unit[(size_t(row / kLanes) * panels + p) * kLanes + row % kLanes] = float(step);
      for (int g = first; g < last; g++) {
        const size_t at = ((size_t(row / kLanes) * (groups / 2) + g / 2) * kLanes + row % kLanes) * 2 + g % 2;
        const double s = scales[in_file + g] * inverse, whole = std::nearbyint(s);
        multiplier[at] = int16_t(whole);
        if (minimum) offset[at] = int16_t(std::nearbyint(minima[in_file + g] * inverse + (s - whole) * kMost / 2));
      }
    }
  matrix_.fixed = {panel, panels, multiplier, minimum ? offset : nullptr, unit};
}

Weight::Weight(const void* data, Format format, int n, int k)
    : data_(data_bytes(format, n, k)), scale_(0), minimum_(0), multiplier_(0), offset_(0), unit_(0) {
  if (k % 2) throw std::invalid_argument("a matrix needs an even number of inputs");
  if (format == Format::f32) pack_dense<uint32_t>(data, data_.data(), n, k);
  else pack_dense<uint16_t>(data, data_.data(), n, k);
  matrix_ = {format, n, k, 0, 0.0f, false, data_.data(), nullptr, nullptr, {}};
}

KVCacheLayer::KVCacheLayer(int num_kv_heads, int head_dim, int num_blocks, int block_size, bool is_bf16)
    : keys_(size_t(num_kv_heads) * head_dim * num_blocks * block_size * (is_bf16 ? 2 : 4)), values_(keys_.size()) {
  if (block_size % kLanes) throw std::invalid_argument("block_size must be a multiple of 16");
  if (head_dim > kMaxHeadDim) throw std::invalid_argument("head_dim is larger than 512");
  layer_ = {num_kv_heads, head_dim, num_blocks, block_size, is_bf16, keys_.data(), values_.data()};
}

}  // namespace headway
