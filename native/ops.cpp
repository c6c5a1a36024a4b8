#include "ops.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace headway {

float* Context::row(TensorRef t, int row) const {
  return program.buffer(t.buffer) + size_t(row) * program.width(t.buffer) + t.offset;
}
int Context::stride(TensorRef t) const { return program.width(t.buffer); }
int Context::rows_of(TensorRef t) const { return program.has_logit_rows(t.buffer) ? step.logit_rows : step.rows; }

namespace {

struct EmbedOp : Op {
  std::shared_ptr<Weight> table;
  float scale;
  TensorRef out;
  EmbedOp(std::shared_ptr<Weight> table, float scale, TensorRef out) : table(std::move(table)), scale(scale), out(out) {}
  void run(const Context& c) const override {
    c.split_rows(c.step.rows, [&](int r) { c.kernels.embed_row(table->matrix(), c.step.token_ids[r], scale, c.row(out, r)); });
  }
};

struct RmsNormOp : Op {
  TensorRef x;
  std::shared_ptr<Memory> weight;
  float eps;
  TensorRef out;
  RmsNormOp(TensorRef x, std::shared_ptr<Memory> weight, float eps, TensorRef out)
      : x(x), weight(std::move(weight)), eps(eps), out(out) {}
  void run(const Context& c) const override {
    const float* w = reinterpret_cast<const float*>(weight->data());
    const int d = int(weight->size() / sizeof(float));
    c.split_rows(c.rows_of(x), [&](int r) {
      for (int at = 0; at < x.width; at += d) c.kernels.rms_norm(c.row(x, r) + at, w, d, eps, c.row(out, r) + at);
    });
  }
};

// y = x W^T of one or more matrices side by side. Few rows: all workers share the blocks of outputs. Many: each has rows of its
// own, whose data stay in its cache from one op to the next.
struct LinearOp : Op {
  static constexpr int kShares = 2;               // for each worker: more would balance better, but every one begins a new stream
  static constexpr int kOwnRows = 96;             // a worker that has as many computes them alone
  static constexpr int kGatedFloats = 1 << 16;    // of gates, and of ups, that wait for each other at a time
  TensorRef x;
  LinearSpec spec;
  TensorRef out;
  int k, total_blocks = 0;
  bool needs_int8 = false, needs_fixed = false;

  LinearOp(TensorRef x, LinearSpec linear, TensorRef out)
      : x(x), spec(std::move(linear)), out(out), k(spec.parts.front()->matrix().k) {
    for (const auto& part : spec.parts) {
      const PackedMatrix& w = part->matrix();
      if (w.fixed.unit) needs_fixed = true;
      else if (w.format == Format::q4 || w.format == Format::q8) needs_int8 = true;
      total_blocks += blocks(*part);
    }
    if (!spec.gated) return;
    if (spec.parts.size() != 2 || spec.parts[0]->matrix().n != spec.parts[1]->matrix().n || spec.residual)
      throw std::invalid_argument("a gated linear op has two parts of equal size and no residual");
    total_blocks /= 2;  // of the result
  }

  static int blocks(const Weight& part) { return (part.matrix().n + kLanes - 1) / kLanes; }

  void run(const Context& c) const override {
    const int rows = c.rows_of(x), chunk = std::max(1, total_blocks / (c.workers * kShares));
    if (!rows) return;  // a step that samples nothing
    if (rows >= kOwnRows * c.workers) {
      const int share = (rows + c.workers - 1) / c.workers + kFixedTile - 1 & -kFixedTile;
      const int first = std::min(rows, c.worker * share), last = std::min(rows, first + share);
      for (int r = first; r < last; r++) prepare(c, r, first, r - first, last - first);
      if (first < last)
        for (int b = 0; b < total_blocks; b += chunk) run_blocks(c, input(c, first, last - first, first), first, b, chunk);
      return;
    }
    // A single row is prepared by every worker for itself: that is quicker than to wait for each other.
    const int place = rows == 1 ? c.worker * kFixedTile : 0;
    if (rows == 1) prepare(c, 0, place, 0, 1);
    else if (spec.norm || needs_int8 || needs_fixed) {
      c.split_rows(rows, [&](int r) { prepare(c, r, 0, r, rows); });
      c.pool.barrier();
    }
    c.take_items((total_blocks + chunk - 1) / chunk, [&](int item) {
      run_blocks(c, input(c, 0, rows, place), 0, item * chunk, chunk);
    });
  }

  // Row r of x, in the forms that the parts read, as row `index` of a set of `rows` rows kept at `place` of the shared room.
  void prepare(const Context& c, int r, int place, int index, int rows) const {
    const float* row = c.row(x, r);
    if (spec.norm) {
      float* normed = c.program.staged(place + index, k);
      c.kernels.rms_norm(row, reinterpret_cast<const float*>(spec.norm->data()), k, spec.eps, normed);
      row = normed;
    }
    if (needs_int8) c.kernels.quantize_row(row, k, c.program.quantized(place, k), index, rows);
    if (needs_fixed) c.kernels.fix_row(row, k, c.program.fixed(place, k, rows), index);
  }

  LinearInput input(const Context& c, int first, int rows, int place) const {
    LinearInput input{rows, c.row(x, first), c.stride(x), c.program.quantized(place, k), {}};
    if (needs_fixed) input.fixed = c.program.fixed(place, k, rows);
    if (spec.norm) input.x = c.program.staged(place, k), input.stride = k;
    return input;
  }

  // Blocks [first, first + count) of the output, for the input's rows, which begin at `row`.
  void run_blocks(const Context& c, const LinearInput& input, int row, int first, int count) const {
    const int last = std::min(first + count, total_blocks);
    if (spec.gated) {
      const int step = std::clamp(kGatedFloats / (input.rows * kLanes), 1, count);
      for (int b = first; b < last; b += step) run_gated(c, input, row, b, std::min(b + step, last));
      return;
    }
    int column = 0, start = 0;  // of the part
    for (const auto& part : spec.parts) {
      const int from = std::max(first, start), to = std::min(last, start + blocks(*part));
      if (from < to) {
        LinearOutput y{c.row(out, row) + column, c.stride(out), bias_at(column), nullptr, 0};
        if (spec.residual) y.residual = c.row(*spec.residual, row) + column, y.residual_stride = c.stride(*spec.residual);
        c.kernels.linear_blocks(part->matrix(), from - start, to - start, input, y);
      }
      start += blocks(*part);
      column += part->matrix().n;
    }
  }

  // act(gate) * up: both halves of these columns first, near at hand.
  void run_gated(const Context& c, const LinearInput& input, int row, int first, int last) const {
    static thread_local std::vector<float> room;
    const int n = spec.parts[0]->matrix().n, column = first * kLanes, width = std::min(last * kLanes, n) - column;
    const int stride = (last - first) * kLanes;
    room.resize(std::max(room.size(), size_t(input.rows) * stride * 2));
    float* halves[2] = {room.data(), room.data() + size_t(input.rows) * stride};
    for (int i = 0; i < 2; i++)
      c.kernels.linear_blocks(spec.parts[i]->matrix(), first, last, input, {halves[i] - column, stride, bias_at(i * n), nullptr, 0});
    for (int r = 0; r < input.rows; r++)
      c.kernels.gated(halves[0] + size_t(r) * stride, halves[1] + size_t(r) * stride, width, *spec.gated, c.row(out, row + r) + column);
  }

  const float* bias_at(int column) const {
    return spec.bias ? reinterpret_cast<const float*>(spec.bias->data()) + column : nullptr;
  }
};

// The request that owns a row, found by walking forward: rows of a worker are visited in order.
struct RequestCursor {
  const Step& step;
  int request = 0;
  const int32_t* table_of(int row) {
    while (row >= step.row_starts[request + 1]) request++;
    return step.block_tables + size_t(request) * step.table_width;
  }
};

struct RopeAndStoreOp : Op {
  TensorRef q, k, v;
  std::shared_ptr<Memory> table;
  std::shared_ptr<KVCacheLayer> kv;
  TensorRef out;
  RopeAndStoreOp(TensorRef q, TensorRef k, TensorRef v, std::shared_ptr<Memory> table, std::shared_ptr<KVCacheLayer> kv,
                 TensorRef out)
      : q(q), k(k), v(v), table(std::move(table)), kv(std::move(kv)), out(out) {}
  void run(const Context& c) const override {
    const KVLayer& layer = kv->layer();
    const int d = layer.head_dim;
    RequestCursor cursor{c.step};
    c.split_rows(c.step.rows, [&](int r) {
      const int position = c.step.positions[r];
      const float* rotation = reinterpret_cast<const float*>(table->data()) + size_t(position) * d;
      for (int at = 0; at < q.width; at += d) c.kernels.rope(c.row(q, r) + at, rotation, d, c.row(out, r) + at);
      const int block = cursor.table_of(r)[position / layer.block_size], offset = position % layer.block_size;
      for (int head = 0; head < layer.num_kv_heads; head++) {
        alignas(64) float rotated[kMaxHeadDim];
        c.kernels.rope(c.row(k, r) + head * d, rotation, d, rotated);
        c.kernels.store_key(layer, block, offset, head, rotated);
        c.kernels.store_value(layer, block, offset, head, c.row(v, r) + head * d);
      }
    });
  }
};

struct AttentionOp : Op {
  TensorRef q;
  std::shared_ptr<KVCacheLayer> kv;
  float scale;
  int window;
  TensorRef out;
  AttentionOp(TensorRef q, std::shared_ptr<KVCacheLayer> kv, float scale, int window, TensorRef out)
      : q(q), kv(std::move(kv)), scale(scale), window(window), out(out) {}

  // A request's queries of one kv head, row by row and head by head, are cut into tiles; a tile of one kv head is an item.
  int group() const { return q.width / kv->layer().head_dim / kv->layer().num_kv_heads; }

  int tile_size(const Context& c) const {
    const int queries = c.step.rows * group() * kv->layer().num_kv_heads;
    return std::clamp(queries / c.workers, 1, c.kernels.attention_tile(kv->layer()));  // few queries: smaller tiles, so that every worker has some
  }

  void run(const Context& c) const override {
    const int tile = tile_size(c), heads = kv->layer().num_kv_heads;
    std::vector<int>& ends = tile_ends();
    ends.clear();
    int total = 0;
    for (int i = 0; i < c.step.requests; i++) {
      const int queries = (c.step.row_starts[i + 1] - c.step.row_starts[i]) * group();
      ends.push_back(total += (queries + tile - 1) / tile);
    }
    // As many heads at a time as there are workers: tiles of one head read the same keys and values, which then stay near.
    c.take_items(total * heads, [&](int item) {
      const int done = item / (total * c.workers) * c.workers, width = std::min(c.workers, heads - done), at = item - total * done;
      const int index = total - 1 - at / width;  // the last tiles of a long prompt read most: start with them
      const int request = int(std::upper_bound(ends.begin(), ends.end(), index) - ends.begin());
      const int first = (index - (request ? ends[request - 1] : 0)) * tile;
      run_tile(c, request, done + at % width, first, tile);
    });
  }

  static std::vector<int>& tile_ends() {
    static thread_local std::vector<int> ends;
    return ends;
  }

  void run_tile(const Context& c, int request, int head, int first, int tile) const {
    const KVLayer& layer = kv->layer();
    const int row0 = c.step.row_starts[request];
    const int queries = (c.step.row_starts[request + 1] - row0) * group();
    AttentionTile t{&layer, c.step.block_tables + size_t(request) * c.step.table_width, head, scale, window, 0, {}};
    for (int i = first; i < std::min(first + tile, queries); i++) {
      const int row = row0 + i / group(), column = (head * group() + i % group()) * layer.head_dim;
      t.queries[t.num_queries++] = {c.row(q, row) + column, c.row(out, row) + column, c.step.positions[row]};
    }
    c.kernels.attention(t);
  }
};

struct GatedActivationOp : Op {
  TensorRef gate_up;
  Activation kind;
  TensorRef out;
  GatedActivationOp(TensorRef gate_up, Activation kind, TensorRef out) : gate_up(gate_up), kind(kind), out(out) {}
  void run(const Context& c) const override {
    const int width = gate_up.width / 2;
    c.split_rows(c.rows_of(gate_up), [&](int r) {
      const float* gate = c.row(gate_up, r);
      c.kernels.gated(gate, gate + width, width, kind, c.row(out, r));
    });
  }
};

struct AddOp : Op {
  TensorRef x, y, out;
  AddOp(TensorRef x, TensorRef y, TensorRef out) : x(x), y(y), out(out) {}
  void run(const Context& c) const override {
    c.split_rows(c.rows_of(x), [&](int r) { c.kernels.add(c.row(x, r), c.row(y, r), x.width, c.row(out, r)); });
  }
};

struct TakeLogitRowsOp : Op {
  TensorRef x, out;
  TakeLogitRowsOp(TensorRef x, TensorRef out) : x(x), out(out) {}
  void run(const Context& c) const override {
    c.split_rows(c.step.logit_rows, [&](int r) {
      std::memcpy(c.row(out, r), c.row(x, c.step.logit_row_ids[r]), size_t(x.width) * sizeof(float));
    });
  }
};

}  // namespace

std::unique_ptr<Op> make_embed(std::shared_ptr<Weight> table, float scale, TensorRef out) {
  return std::make_unique<EmbedOp>(std::move(table), scale, out);
}
std::unique_ptr<Op> make_rms_norm(TensorRef x, std::shared_ptr<Memory> weight, float eps, TensorRef out) {
  return std::make_unique<RmsNormOp>(x, std::move(weight), eps, out);
}
std::unique_ptr<Op> make_linear(TensorRef x, LinearSpec spec, TensorRef out) {
  return std::make_unique<LinearOp>(x, std::move(spec), out);
}
std::unique_ptr<Op> make_rope_and_store(TensorRef q, TensorRef k, TensorRef v, std::shared_ptr<Memory> table,
                                        std::shared_ptr<KVCacheLayer> kv, TensorRef out) {
  return std::make_unique<RopeAndStoreOp>(q, k, v, std::move(table), std::move(kv), out);
}
std::unique_ptr<Op> make_attention(TensorRef q, std::shared_ptr<KVCacheLayer> kv, float scale, int window, TensorRef out) {
  return std::make_unique<AttentionOp>(q, std::move(kv), scale, window, out);
}
std::unique_ptr<Op> make_gated_activation(TensorRef gate_up, Activation kind, TensorRef out) {
  return std::make_unique<GatedActivationOp>(gate_up, kind, out);
}
std::unique_ptr<Op> make_add(TensorRef x, TensorRef y, TensorRef out) { return std::make_unique<AddOp>(x, y, out); }
std::unique_ptr<Op> make_take_logit_rows(TensorRef x, TensorRef out) { return std::make_unique<TakeLogitRowsOp>(x, out); }

}  // namespace headway
