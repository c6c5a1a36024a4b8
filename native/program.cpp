#include "program.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "ops.hpp"

namespace headway {

Program::Program(ThreadPool& pool, const Kernels& kernels, int max_rows, int max_logit_rows)
    : pool_(pool), kernels_(kernels), max_rows_(max_rows), max_logit_rows_(max_logit_rows) {}

int Program::add_buffer(int width, bool logit_rows) {
  const size_t rows = size_t(logit_rows ? max_logit_rows_ : max_rows_);
  buffers_.push_back({width, logit_rows, std::make_unique<Memory>(rows * width * sizeof(float))});
  return int(buffers_.size()) - 1;
}

void Program::embed(std::shared_ptr<Weight> table, float scale, TensorRef out) {
  vocab_size_ = table->matrix().n;
  ops_.push_back(make_embed(std::move(table), scale, out));
}
void Program::rms_norm(TensorRef x, std::shared_ptr<Memory> weight, float eps, TensorRef out) {
  ops_.push_back(make_rms_norm(x, std::move(weight), eps, out));
}
void Program::linear(TensorRef x, LinearSpec spec, TensorRef out) {
  reserve_inputs(spec.parts.front()->matrix().k);
  ops_.push_back(make_linear(x, std::move(spec), out));
}
void Program::rope_and_store(TensorRef q, TensorRef k, TensorRef v, std::shared_ptr<Memory> table,
                             std::shared_ptr<KVCacheLayer> kv, TensorRef out) {
  const KVLayer& layer = kv->layer();
  const int table_rows = int(table->size() / sizeof(float)) / layer.head_dim;
  max_context_ = std::min(max_context_, table_rows);
  block_size_ = layer.block_size;
  num_blocks_ = layer.num_blocks;
  ops_.push_back(make_rope_and_store(q, k, v, std::move(table), std::move(kv), out));
}
void Program::attention(TensorRef q, std::shared_ptr<KVCacheLayer> kv, float scale, int window, TensorRef out) {
  ops_.push_back(make_attention(q, std::move(kv), scale, window, out));
}
void Program::gated_activation(TensorRef gate_up, Activation kind, TensorRef out) {
  ops_.push_back(make_gated_activation(gate_up, kind, out));
}
void Program::add(TensorRef x, TensorRef y, TensorRef out) { ops_.push_back(make_add(x, y, out)); }
void Program::take_logit_rows(TensorRef x, TensorRef out) { ops_.push_back(make_take_logit_rows(x, out)); }

void Program::reserve_inputs(int k) {
  if (k <= reserved_k_) return;
  reserved_k_ = k;
  const size_t rows = size_t(std::max({max_rows_, max_logit_rows_, pool_.size() * kFixedTile})), groups = rows * (k / kActivationGroup);
  staged_ = std::make_unique<Memory>(rows * k * sizeof(float));
  quantized_memory_ = std::make_unique<Memory>(rows * k + groups * 5 * sizeof(float));
  if (kernels_.fix_row) reserve_fixed(rows, k);
  float* floats = reinterpret_cast<float*>(quantized_memory_->data());
  quantized_ = {reinterpret_cast<int8_t*>(floats + groups * 5), floats, floats + groups, floats + groups * 2, floats + groups * 4};
}

// Rows fill whole tiles, of which every worker may need one of its own.
void Program::reserve_fixed(size_t rows, int k) {
  const size_t padded = (std::max(rows, size_t(pool_.size()) * kFixedTile) + kFixedTile - 1) / kFixedTile * kFixedTile;
  const size_t scales = padded * ((k + 63) / 64);  // at most
  fixed_memory_ = std::make_unique<Memory>(padded * k * 2 + scales * (2 * sizeof(int32_t) + sizeof(float)));
  int8_t* bytes = reinterpret_cast<int8_t*>(fixed_memory_->data());
  int32_t* words = reinterpret_cast<int32_t*>(bytes + padded * k * 2);
  fixed_ = {0, 0, 0, bytes, bytes + padded * k, reinterpret_cast<float*>(words + scales * 2), words, words + scales};
}

FixedRows Program::fixed(int row, int k, int rows) const {
  const int panel = fixed_panel(k), panels = (k + panel - 1) / panel;
  const size_t scales = size_t(row) * panels;
  const int tiles = (rows + kFixedTile - 1) / kFixedTile;
  return {(rows + tiles - 1) / tiles, panel, panels, fixed_.high + size_t(row) * k, fixed_.low + size_t(row) * k, fixed_.scale + scales,
          fixed_.high_sums + scales, fixed_.low_sums + scales};
}

QuantizedRows Program::quantized(int row, int k) const {
  const size_t groups = size_t(row) * (k / kActivationGroup);
  return {quantized_.q + size_t(row) * k, quantized_.scale + groups, quantized_.sum32 + groups, quantized_.sum16 + 2 * groups,
          quantized_.scaled_sum + groups};
}

void Program::check(const Step& step) const {
  const auto require = [](bool ok, const char* what) { if (!ok) throw std::out_of_range(what); };
  require(step.rows > 0 && step.rows <= max_rows_, "more rows in a step than the program has room for");
  require(step.logit_rows <= max_logit_rows_, "more logit rows in a step than the program has room for");
  require(step.row_starts[0] == 0 && step.row_starts[step.requests] == step.rows, "row_starts must cover the rows");
  for (int i = 0; i < step.logit_rows; i++)
    require(step.logit_row_ids[i] >= 0 && step.logit_row_ids[i] < step.rows, "logit row out of range");
  for (int i = 0; i < step.requests; i++) {
    require(step.row_starts[i] < step.row_starts[i + 1], "every request in a step needs a row");
    for (int r = step.row_starts[i]; r < step.row_starts[i + 1]; r++) {
      require(step.token_ids[r] >= 0 && step.token_ids[r] < vocab_size_, "token id outside the vocabulary");
      require(step.positions[r] >= 0 && step.positions[r] < max_context_, "position outside the context");
    }
    if (!num_blocks_) continue;
    const int last = step.positions[step.row_starts[i + 1] - 1];
    require(last / block_size_ < step.table_width, "block table shorter than the sequence");
    for (int b = 0; b <= last / block_size_; b++) {
      const int block = step.block_tables[size_t(i) * step.table_width + b];
      require(block >= 0 && block < num_blocks_, "block id outside the pool");
    }
  }
}

template <class AfterOp> void Program::replay(const Step& step, int worker, AfterOp after_op) {
  for (size_t i = 0; i < ops_.size(); i++) {
    ops_[i]->run(Context{*this, step, pool_, kernels_, worker, pool_.size(), next_[i]});
    pool_.barrier();
    after_op(i);
  }
}

void Program::run(const Step& step) {
  check(step);
  if (!next_) next_ = std::make_unique<std::atomic<int>[]>(ops_.size());
  for (size_t i = 0; i < ops_.size(); i++) next_[i].store(0, std::memory_order_relaxed);
  if (seconds_.empty()) return pool_.run([&](int worker) { replay(step, worker, [](size_t) {}); });
  pool_.run([&](int worker) {
    auto last = std::chrono::steady_clock::now();
    replay(step, worker, [&](size_t op) {
      if (worker) return;
      const auto now = std::chrono::steady_clock::now();
      seconds_[op] += std::chrono::duration<double>(now - last).count();
      last = now;
    });
  });
}

size_t Program::workspace_bytes() const {
  size_t total = quantized_memory_ ? quantized_memory_->size() + staged_->size() : 0;
  if (fixed_memory_) total += fixed_memory_->size();
  for (const Buffer& b : buffers_) total += b.memory->size();
  return total;
}

}  // namespace headway
