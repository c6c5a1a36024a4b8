// Plain values shared by the program and the kernels. No code here: this header is seen by translation units built for
// different instruction sets, so an inline function could be taken from the wrong one.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headway {

constexpr int kLanes = 16;           // outputs in a block of a packed matrix, tokens in a sub-block of the KV cache
constexpr int kMaxTile = 8;          // the most queries in an attention tile, on any instruction set
constexpr int kActivationGroup = 32; // inputs that share one int8 scale
constexpr int kAttentionSplit = 256; // absolute positions whose partial results are formed together, then merged in order
constexpr int kMaxHeadDim = 512;

enum class Format : int { f32, f16, bf16, q4, q8 };

// Files of packed weights are known by this number: raise it with every change to what PackedMatrix's bytes mean.
constexpr int kPackedLayout = 1;

// A weight matrix [n, k] repacked into the order the kernels read: blocks of 16 outputs, k inside.
//   f32, f16, bf16  data [n/16][k][16]
//   q8         data [n/16][k/4][16][4] bytes
//   q4         data [n/16][k/32][4][16][4] bytes: byte (i, lane, j) holds input 4i+j low, input 16+4i+j high
//   scale, minimum (q4, q8)  [n/16][k/group][16], f16 or f32
// W = scale * (q - zero) + minimum. The last block is padded with zero scales.
struct PackedMatrix {
  Format format;
  int n, k;
  int group;            // inputs that share a scale: 16 or 32
  float zero;
  bool wide_scales;     // scales and minima are f32, not f16
  const uint8_t* data;
  const void* scale;
  const void* minimum;  // null: none
};

// Rows of int8 activations: x ~ scale * q in groups of 32, scaled by the group's own largest value. Rows are kept in tiles of
// `Kernels::tile` (the last may be smaller: M rows), rows innermost, so that a kernel walks one stream:
//   q           [tile][k/4][M][4]
//   scale, sum32, scaled_sum  [tile][k/32][M]       sum32: sum of q, exact; scaled_sum: scale * sum32
//   sum16                     [tile][k/16][M]
struct QuantizedRows {
  int8_t* q;
  float* scale;
  float* sum32;
  float* sum16;
  float* scaled_sum;
};

// The input of a linear op, in float and, where a part is quantised, in int8.
struct LinearInput {
  int rows;
  const float* x;   // [rows], stride below
  int stride;
  QuantizedRows quantized;
};

// One layer of the pool, in sub-blocks of 16 tokens: a block holds block_size / 16 of them.
//   keys    [block][kv_head][sub][d][16]   so that 16 scores are formed without a horizontal sum
//   values  [block][kv_head][sub][16][d]
struct KVLayer {
  int num_kv_heads, head_dim, num_blocks, block_size;
  bool is_bf16;
  void* keys;
  void* values;
};

// Where a linear op's results go, from its first column on: y = x W^T + bias, and added to `residual` where there is one.
struct LinearOutput {
  float* y;
  int stride;
  const float* bias;      // null: none
  const float* residual;  // null: none
  int residual_stride;
};

struct AttentionQuery {
  const float* q;  // [d]
  float* out;      // [d]
  int position;
};

// Up to kMaxTile queries of one sequence and one kv head.
struct AttentionTile {
  const KVLayer* kv;
  const int32_t* block_table;
  int kv_head;
  float scale;
  int window;  // 0: none
  int num_queries;
  AttentionQuery queries[kMaxTile];
};

enum class Activation : int { silu, gelu_tanh };

// One instruction set's implementation of everything that touches numbers.
struct Kernels {
  const char* name;
  int tile;  // rows in a tile of a linear op, and the most queries `attention` takes at once
  void (*quantize_row)(const float* x, int k, const QuantizedRows& out, int row, int rows);
  // Columns 16 * block .. of the output, for all rows.
  void (*linear_block)(const PackedMatrix& w, int block, const LinearInput& x, const LinearOutput& out);
  void (*embed_row)(const PackedMatrix& table, int row, float scale, float* y);
  void (*rms_norm)(const float* x, const float* weight, int d, float eps, float* y);
  void (*rope)(const float* x, const float* table, int d, float* y);
  void (*store_key)(const KVLayer& kv, int block, int offset, int head, const float* k);
  void (*store_value)(const KVLayer& kv, int block, int offset, int head, const float* v);
  void (*attention)(const AttentionTile& tile);
  void (*gated)(const float* gate, const float* up, int width, Activation kind, float* y);
  void (*add)(const float* x, const float* y, int width, float* out);
  // Runs the inner loop of the integer kernels on registers alone; returns the operations in one iteration.
  int (*int8_operations)(int iterations);
};

}  // namespace headway
