#include "pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <sys/mman.h>
#include <vector>

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

bool has_bytes(const Packing& p) { return p.fixed_point && p.format == Format::q8; }

size_t stored_bytes(const Packing& p) { return has_bytes(p) && !p.is_table ? 0 : data_bytes(p.format, p.n, p.k); }

size_t scale_bytes(const Packing& p) {
  if (!p.group || (p.fixed_point && !p.is_table)) return 0;
  return size_t(blocks_of(p.n)) * kLanes * (p.k / p.group) * (p.wide_scales ? 4 : 2);
}

int num_panels(int k) { return (k + fixed_panel(k) - 1) / fixed_panel(k); }
size_t multiplier_bytes(const Packing& p) { return p.fixed_point && p.format == Format::q4 ? size_t(blocks_of(p.n)) * kLanes * (p.k / 32) * 2 : 0; }
size_t unit_bytes(const Packing& p) { return p.fixed_point ? size_t(blocks_of(p.n)) * kLanes * num_panels(p.k) * 4 : 0; }

// Where each part of a weight begins, and where the last ends.
struct Sections {
  explicit Sections(const Packing& p)
      : scale(aligned_size(stored_bytes(p), 64)),
        minimum(scale + aligned_size(scale_bytes(p), 64)),
        multiplier(minimum + (p.has_minima ? aligned_size(scale_bytes(p), 64) : 0)),
        offset(multiplier + multiplier_bytes(p)),
        unit(offset + (p.has_minima ? multiplier_bytes(p) : 0)),
        bytes(unit + unit_bytes(p)),
        end(bytes + (has_bytes(p) ? data_bytes(p.format, p.n, p.k) : 0)) {}
  size_t scale, minimum, multiplier, offset, unit, bytes, end;
};

const Packing& checked(const Packing& p) {
  if (p.n < 1 || p.k < 1) throw std::invalid_argument("a matrix needs outputs and inputs");
  if (p.format != Format::q4 && p.format != Format::q8) {
    if (p.k % 2) throw std::invalid_argument("a matrix needs an even number of inputs");
    if (p.group || p.has_minima || p.fixed_point) throw std::invalid_argument("only integers have scales and minima");
    return p;
  }
  if (p.fixed_point && p.k % 64) throw std::invalid_argument("fixed point is for inputs a multiple of 64");
  if (p.k % 32 || (p.group != 16 && p.group != 32)) throw std::invalid_argument("groups must be 16 or 32 inputs, and inputs a multiple of 32");
  if (p.group == 16 && (p.format == Format::q4 || p.has_minima)) throw std::invalid_argument("groups of 16 need more than 4 bits and no minimum");
  if (p.has_minima && p.zero) throw std::invalid_argument("a format has a zero point or a minimum, not both");
  return p;
}

float half_to_float(uint16_t h) {
  const bool is_special = (h & 0x7c00) == 0x7c00;
  const uint32_t magnitude = uint32_t(h & 0x7fff) << 13 | (is_special ? 0x7f800000u : 0);
  float value;
  std::memcpy(&value, &magnitude, sizeof value);
  if (!is_special) value *= 0x1p112f;  // moved into place, exponent and mantissa are the value times 2^-112
  return h & 0x8000 ? -value : value;
}

// Scales or minima as they came, in double; zero where there are none.
struct ScaleReader {
  const void* values;
  bool wide;
  double operator[](size_t i) const {
    if (!values) return 0;
    return wide ? double(static_cast<const float*>(values)[i]) : double(half_to_float(static_cast<const uint16_t*>(values)[i]));
  }
};

template <class T> void pack_scales(const void* from, uint8_t* to, int n, int groups) {
  const T* source = static_cast<const T*>(from);
  T* packed = reinterpret_cast<T*>(to);
  for (int row = 0; row < n; row++)
    for (int g = 0; g < groups; g++)
      packed[(size_t(row / kLanes) * groups + g) * kLanes + row % kLanes] = source[size_t(row) * groups + g];
}

// Where byte i (of 16: inputs i and 16 + i) of an output's group lies.
int q4_place(int lane, int i, bool fixed_point) {
  return fixed_point ? lane % 4 * 64 + lane / 4 * 16 + i : i / 4 * 64 + lane * 4 + i % 4;
}

void pack_q4(const uint8_t* q, uint8_t* to, int n, int k, bool fixed_point) {
  for (int row = 0; row < n; row++) {
    const int lane = row % kLanes;
    const uint8_t* source = q + size_t(row) * k;
    uint8_t* block = to + size_t(row / kLanes) * k * kLanes / 2;
    for (int g = 0; g < k / 32; g++, source += 32, block += 256)
      for (int i = 0; i < 16; i++) block[q4_place(lane, i, fixed_point)] = uint8_t(source[i] | source[i + 16] << 4);
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
  mapped_ = whole + kHugePage;  // so that it can begin where a huge page does
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  data_ = reinterpret_cast<uint8_t*>(aligned_size(reinterpret_cast<size_t>(mapping_), kHugePage));
#if defined(MADV_HUGEPAGE)
  madvise(data_, whole, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() {
  if (mapped_) munmap(mapping_, mapped_);
  else std::free(data_);
}

std::shared_ptr<Memory> Memory::of_file(int descriptor, size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (p == MAP_FAILED) return nullptr;
  return std::shared_ptr<Memory>(new Memory(static_cast<uint8_t*>(p), bytes));
}

Weight::Weight(const Packing& packing, std::shared_ptr<Memory> memory, size_t offset)
    : packing_(checked(packing)), bytes_(Sections(packing).end), memory_(std::move(memory)) {
  if (offset % 64 || offset > memory_->size() || bytes_ > memory_->size() - offset)
    throw std::invalid_argument("a packed matrix is not inside its memory");
  const Sections at(packing);
  const uint8_t* data = memory_->data() + offset;
  matrix_ = {packing.format, packing.n, packing.k, packing.group, float(packing.zero), packing.wide_scales,
             data, data + at.scale, packing.has_minima ? data + at.minimum : nullptr, {}};
  if (!packing.fixed_point) return;
  matrix_.fixed = {fixed_panel(packing.k), num_panels(packing.k), nullptr, nullptr, reinterpret_cast<const float*>(data + at.unit), nullptr};
  if (has_bytes(packing)) matrix_.fixed.bytes = data + at.bytes;
  else matrix_.fixed.multiplier = reinterpret_cast<const int16_t*>(data + at.multiplier);
  if (!has_bytes(packing) && packing.has_minima) matrix_.fixed.offset = reinterpret_cast<const int16_t*>(data + at.offset);
}

Weight::Weight(const Packing& packing)
    : Weight(packing, std::make_shared<Memory>(Sections(checked(packing)).end), 0) {}

Weight::Weight(const uint8_t* q, const void* scale, const void* minimum, int n, int k, int bits, int group, int zero,
               bool wide_scales, bool fixed_point, bool is_table)
    : Weight(Packing{bits == 4 ? Format::q4 : Format::q8, n, k, group, zero, wide_scales, minimum != nullptr, fixed_point, is_table}) {
  const Sections at(packing_);
  uint8_t* to = memory_->data();
  if (packing_.format == Format::q4) pack_q4(q, to, n, k, fixed_point);
  else if (stored_bytes(packing_)) pack_q8(q, to, n, k);
  for (auto [from, start] : {std::pair{scale, at.scale}, std::pair{minimum, at.minimum}}) {
    if (!from || !scale_bytes(packing_)) continue;
    if (wide_scales) pack_scales<uint32_t>(from, to + start, n, k / group);
    else pack_scales<uint16_t>(from, to + start, n, k / group);
  }
  if (has_bytes(packing_)) pack_bytes(q, scale, minimum);
  else if (fixed_point) pack_multipliers(scale, minimum);
}

// A panel's unit makes its largest weight 127, less what the rounding of multiplier and offset may add. Offsets are rounded so
// that the rounding of a multiplier does least harm: none in the middle of the range of q.
void Weight::pack_multipliers(const void* scale, const void* minimum) {
  constexpr int kMost = 15;
  const auto [format, n, k, group, zero, wide, has_minima, fixed_point, is_table] = packing_;
  const int groups = k / 32, panel = fixed_panel(k), panels = num_panels(k);
  const ScaleReader scales{scale, wide}, minima{minimum, wide};
  const Sections at(packing_);
  int16_t* multiplier = reinterpret_cast<int16_t*>(memory_->data() + at.multiplier);
  int16_t* offset = reinterpret_cast<int16_t*>(memory_->data() + at.offset);
  float* unit = reinterpret_cast<float*>(memory_->data() + at.unit);
  for (int row = 0; row < n; row++)
    for (int p = 0; p < panels; p++) {
      const int first = p * panel / 32, last = std::min(groups, first + panel / 32);
      const size_t source = size_t(row) * groups, block = size_t(row / kLanes), lane = size_t(row % kLanes);
      double largest = 0;
      for (int g = first; g < last; g++) {
        const double s = scales[source + g], low = minima[source + g] - s * zero;
        largest = std::max({largest, std::abs(low), std::abs(low + s * kMost)});
      }
      const double step = largest / (127 * 256 - kMost), inverse = step > 0 ? 1 / step : 0;
      unit[(block * panels + p) * kLanes + lane] = float(step * 256);
      for (int g = first; g < last; g++) {
        const size_t to = ((block * (groups / 2) + g / 2) * kLanes + lane) * 2 + g % 2;
        const double s = scales[source + g] * inverse, whole = std::nearbyint(s);
        multiplier[to] = int16_t(whole);
        if (has_minima) offset[to] = int16_t(kByteOffset + int(std::nearbyint(minima[source + g] * inverse + (s - whole) * kMost / 2)));
      }
    }
}

// A panel's unit makes its largest weight 127.
void Weight::pack_bytes(const uint8_t* q, const void* scale, const void* minimum) {
  const auto [format, n, k, group, zero, wide, has_minima, fixed_point, is_table] = packing_;
  const int groups = k / group, panel = fixed_panel(k), panels = num_panels(k);
  const ScaleReader scales{scale, wide}, minima{minimum, wide};
  const Sections at(packing_);
  float* unit = reinterpret_cast<float*>(memory_->data() + at.unit);
  uint8_t* bytes = memory_->data() + at.bytes;
  std::fill_n(bytes, data_bytes(format, n, k), uint8_t(128));
  std::vector<double> weights(k);
  for (int row = 0; row < n; row++) {
    const size_t block = size_t(row / kLanes), lane = size_t(row % kLanes);
    for (int i = 0; i < k; i++) {
      const size_t g = size_t(row) * groups + i / group;
      weights[i] = scales[g] * (q[size_t(row) * k + i] - zero) + minima[g];
    }
    for (int p = 0; p < panels; p++) {
      const int first = p * panel, last = std::min(k, first + panel);
      double largest = 0;
      for (int i = first; i < last; i++) largest = std::max(largest, std::abs(weights[i]));
      const double inverse = largest > 0 ? 127 / largest : 0;
      unit[(block * panels + p) * kLanes + lane] = float(largest / 127);
      for (int i = first; i < last; i++)
        bytes[((block * k + size_t(i) / 4 * 4) * kLanes) + lane * 4 + i % 4] = uint8_t(128 + int(std::nearbyint(weights[i] * inverse)));
    }
  }
}

Weight::Weight(const void* data, Format format, int n, int k) : Weight(Packing{format, n, k}) {
  if (format == Format::f32) pack_dense<uint32_t>(data, memory_->data(), n, k);
  else pack_dense<uint16_t>(data, memory_->data(), n, k);
}

size_t Weight::wide_bytes(const Kernels& kernels) const {
  return kernels.widen_block && matrix_.fixed.multiplier ? size_t(blocks_of(packing_.n)) * kLanes * packing_.k : 0;
}

void Weight::widen(const Kernels& kernels, std::shared_ptr<Memory> memory, size_t offset) {
  const size_t block_bytes = size_t(kLanes) * packing_.k;
  if (offset % 64 || offset > memory->size() || wide_bytes(kernels) > memory->size() - offset)
    throw std::invalid_argument("a wide weight is not inside its memory");
  for (int block = 0; block < blocks_of(packing_.n); block++)
    kernels.widen_block(matrix_, block, memory->data() + offset + block * block_bytes);
  matrix_.fixed.bytes = memory->data() + offset;
  wide_ = std::move(memory);
}

KVCacheLayer::KVCacheLayer(std::shared_ptr<Memory> memory, int layer, int layers, int num_kv_heads, int head_dim, int num_blocks,
                           int block_size, bool is_bf16)
    : memory_(std::move(memory)) {
  if (block_size % kLanes) throw std::invalid_argument("block_size must be a multiple of 16");
  if (head_dim > kMaxHeadDim) throw std::invalid_argument("head_dim is larger than 512");
  layer_ = {num_kv_heads, head_dim, num_blocks, block_size, is_bf16, 0, nullptr, nullptr};
  const size_t number = is_bf16 ? 2 : 4, block_bytes = token_bytes() * size_t(block_size);
  if (layer < 0 || layer >= layers || memory_->size() != block_bytes * size_t(layers) * size_t(num_blocks))
    throw std::invalid_argument("a layer is not inside its pool");
  uint8_t* keys = memory_->data() + block_bytes * size_t(layer);
  layer_.block_stride = block_bytes * size_t(layers) / number;
  layer_.keys = keys;
  layer_.values = keys + size_t(kLanes) * size_t(head_dim) * number;
}

size_t KVCacheLayer::token_bytes() const {
  return size_t(layer_.num_kv_heads) * size_t(layer_.head_dim) * 2 * (layer_.is_bf16 ? 2 : 4);
}

size_t KVCacheLayer::block_bytes() const { return layer_.block_stride * (layer_.is_bf16 ? 2 : 4); }

uint8_t* KVCacheLayer::block(int id) const {
  if (id < 0 || id >= layer_.num_blocks) throw std::out_of_range("no such block");
  return memory_->data() + block_bytes() * size_t(id);
}

}  // namespace headway
