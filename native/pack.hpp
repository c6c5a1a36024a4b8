// Owned memory in the layouts of types.hpp, and the repacking of checkpoint matrices into them.
#pragma once
#include <memory>

#include "types.hpp"

namespace headway {

// Zeroed, aligned to 64 bytes (huge pages where it is large), never moved.
class Memory {
 public:
  explicit Memory(size_t bytes);
  ~Memory();
  // The first `bytes` of an open file, mapped: for reading only. Null: errno says why. Whoever changes the file changes it.
  static std::shared_ptr<Memory> of_file(int descriptor, size_t bytes);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Memory(uint8_t* data, size_t size) : size_(size), mapping_(data), mapped_(size), data_(data) {}

  size_t size_;
  void* mapping_ = nullptr;
  size_t mapped_ = 0;  // bytes to unmap; 0: from malloc
  uint8_t* data_ = nullptr;
};

// All there is to say of a packed matrix besides its bytes: the fields of PackedMatrix, without the addresses.
struct Packing {
  Format format;
  int n, k;
  int group = 0, zero = 0;  // group 0: no scales
  bool wide_scales = false, has_minima = false;
  // Described as FixedPoint: for k a multiple of 64. Scales are then kept only where rows are looked up, and integers of more
  // than 4 bits likewise.
  bool fixed_point = false, is_table = false;
};

// Inputs in a panel of fixed-point weights or activations: as few panels as may be, of equal size.
int fixed_panel(int k);

// A packed matrix in one run of bytes: data, scales, minima, multipliers, offsets, units, bytes, each from a multiple of 64 on.
class Weight {
 public:
  // q [n, k] bytes below 2**bits; scales [n, k / group] f16 bits or f32; minima likewise or null.
  Weight(const uint8_t* q, const void* scale, const void* minimum, int n, int k, int bits, int group, int zero, bool wide_scales,
         bool fixed_point = false, bool is_table = false);
  // data [n, k] of f32, f16 or bf16.
  Weight(const void* data, Format format, int n, int k);
  // Packed before: the bytes of `memory` from `offset` on, a multiple of 64.
  Weight(const Packing& packing, std::shared_ptr<Memory> memory, size_t offset);

  const Packing& packing() const { return packing_; }
  const PackedMatrix& matrix() const { return matrix_; }
  const uint8_t* data() const { return matrix_.data; }
  size_t bytes() const { return bytes_; }

  // 4-bit weights as bytes, which many rows are multiplied with sooner: what they take (nothing where `kernels` have no use for
  // them), and to have them made in `memory` from `offset` on.
  size_t wide_bytes(const Kernels& kernels) const;
  void widen(const Kernels& kernels, std::shared_ptr<Memory> memory, size_t offset);

 private:
  explicit Weight(const Packing& packing);
  void pack_multipliers(const void* scale, const void* minimum);
  void pack_bytes(const uint8_t* q, const void* scale, const void* minimum);

  Packing packing_;
  size_t bytes_;
  std::shared_ptr<Memory> memory_;
  std::shared_ptr<Memory> wide_;
  PackedMatrix matrix_;
};

// Of a pool in which a block's layers lie side by side: its first use then costs the pages of that block, where layers one after
// another would all come to their next huge page in the same step.
class KVCacheLayer {
 public:
  // Layer `layer` of `layers`, in `memory` for all of them. `head_dim` at most 512, `block_size` a multiple of 16.
  KVCacheLayer(std::shared_ptr<Memory> memory, int layer, int layers, int num_kv_heads, int head_dim, int num_blocks, int block_size,
               bool is_bf16);
  const KVLayer& layer() const { return layer_; }
  // Of one token's key and value.
  size_t token_bytes() const;
  // A block of the pool: all its layers, and whose bytes these are.
  size_t block_bytes() const;
  uint8_t* block(int id) const;

 private:
  std::shared_ptr<Memory> memory_;
  KVLayer layer_;
};

}  // namespace headway
