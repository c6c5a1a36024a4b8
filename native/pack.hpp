// Owned memory in the layouts of types.hpp, and the repacking of checkpoint matrices into them.
#pragma once
#include "types.hpp"

namespace headway {

// Zeroed, aligned to 64 bytes (huge pages where it is large), never moved.
class Memory {
 public:
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  size_t mapped_ = 0;  // bytes to unmap; 0: from malloc
  uint8_t* data_ = nullptr;
};

// Inputs in a panel of fixed-point weights or activations: as few panels as may be, of equal size.
int fixed_panel(int k);

class Weight {
 public:
  // fixed_point: described so as well, from 4 bits and k a multiple of 64; then scales are kept for a table of rows only.
  // q [n, k] bytes below 2**bits; scales [n, k / group] f16 bits or f32; minima likewise or null.
  Weight(const uint8_t* q, const void* scale, const void* minimum, int n, int k, int bits, int group, int zero, bool wide_scales,
         bool fixed_point, bool table);
  // data [n, k] of f32, f16 or bf16.
  Weight(const void* data, Format format, int n, int k);

  const PackedMatrix& matrix() const { return matrix_; }
  size_t bytes() const { return data_.size() + scale_.size() + minimum_.size() + multiplier_.size() + offset_.size() + unit_.size(); }

 private:
  void add_fixed_point(const void* scale, const void* minimum);

  Memory data_, scale_, minimum_, multiplier_, offset_, unit_;
  PackedMatrix matrix_;
};

class KVCacheLayer {
 public:
  KVCacheLayer(int num_kv_heads, int head_dim, int num_blocks, int block_size, bool is_bf16);
  const KVLayer& layer() const { return layer_; }
  size_t bytes() const { return keys_.size() + values_.size(); }

 private:
  Memory keys_, values_;
  KVLayer layer_;
};

}  // namespace headway
