// A step program: the model's ops recorded once as a list, replayed in one call a step by a team of threads.
#pragma once
#include <atomic>
#include <climits>
#include <memory>
#include <optional>
#include <vector>

#include "pack.hpp"
#include "thread_pool.hpp"
#include "types.hpp"

namespace headway {

// A ragged batch, flattened; see StepInput in ops/contract.py for the figure.
struct Step {
  int rows, requests, logit_rows;
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* row_starts;
  const int32_t* block_tables;
  int table_width;
  const int32_t* logit_row_ids;
};

// Columns offset .. offset + width of a buffer.
struct TensorRef {
  int buffer, offset, width;
};

// A linear op, and what is done on the way in and out of it so that it costs no pass of its own.
struct LinearSpec {
  std::vector<std::shared_ptr<Weight>> parts;  // stacked along the output
  std::shared_ptr<Memory> bias;                // of all parts; null: none
  std::shared_ptr<Memory> norm;                // the input is normalised first; null: not
  float eps = 0;
  std::optional<Activation> gated;             // the two parts are gate and up: the result is act(gate) * up
  std::optional<TensorRef> residual;           // added to the result
};

class Program;

// What an op sees while it runs: the step, the buffers, and its place in the team.
struct Context {
  const Program& program;
  const Step& step;
  ThreadPool& pool;
  const Kernels& kernels;
  int worker, workers;
  std::atomic<int>& next;  // work items of this op handed out so far

  float* row(TensorRef t, int row) const;
  int stride(TensorRef t) const;
  int rows_of(TensorRef t) const;

  // Rows shared out evenly, or items taken one at a time as workers become free: which worker computes a result never
  // changes the result.
  template <class F> void split_rows(int rows, F f) const {
    for (int r = rows * worker / workers; r < rows * (worker + 1) / workers; r++) f(r);
  }
  template <class F> void take_items(int items, F f) const {
    for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) f(i);
  }
};

class Op {
 public:
  virtual ~Op() = default;
  virtual void run(const Context& context) const = 0;
};

class Program {
 public:
  Program(ThreadPool& pool, const Kernels& kernels, int max_rows, int max_logit_rows);

  int add_buffer(int width, bool logit_rows);

  void embed(std::shared_ptr<Weight> table, float scale, TensorRef out);
  void rms_norm(TensorRef x, std::shared_ptr<Memory> weight, float eps, TensorRef out);
  void linear(TensorRef x, LinearSpec spec, TensorRef out);
  void rope_and_store(TensorRef q, TensorRef k, TensorRef v, std::shared_ptr<Memory> table, std::shared_ptr<KVCacheLayer> kv,
                      TensorRef out);
  void attention(TensorRef q, std::shared_ptr<KVCacheLayer> kv, float scale, int window, TensorRef out);
  void gated_activation(TensorRef gate_up, Activation kind, TensorRef out);
  void add(TensorRef x, TensorRef y, TensorRef out);
  void take_logit_rows(TensorRef x, TensorRef out);

  // Throws std::out_of_range, before anything is computed, for a step that would read or write outside its memory.
  void run(const Step& step);

  // While on, `run` adds up the seconds of each op, as its first worker sees them: from the barrier before to the one after.
  void profile(bool on) { seconds_.assign(on ? ops_.size() : 0, 0); }
  const std::vector<double>& seconds() const { return seconds_; }

  float* buffer(int id) const { return reinterpret_cast<float*>(buffers_[id].memory->data()); }
  int width(int id) const { return buffers_[id].width; }
  bool has_logit_rows(int id) const { return buffers_[id].logit_rows; }
  size_t workspace_bytes() const;

  // Room for a linear op's input rows as they are multiplied, in float and in int8, at `row` and after; shared by all ops,
  // since they run one after another.
  float* staged(int row, int k) const { return reinterpret_cast<float*>(staged_->data()) + size_t(row) * k; }
  QuantizedRows quantized(int row, int k) const;
  FixedRows fixed(int row, int k, int rows) const;  // `rows` rows, kept from `row` on, a multiple of kFixedTile

 private:
  struct Buffer {
    int width;
    bool logit_rows;
    std::unique_ptr<Memory> memory;
  };

  template <class AfterOp> void replay(const Step& step, int worker, AfterOp after_op);
  void reserve_inputs(int k);
  void reserve_fixed(size_t rows, int k);
  void check(const Step& step) const;

  ThreadPool& pool_;
  const Kernels& kernels_;
  int max_rows_, max_logit_rows_;
  int vocab_size_ = 0, max_context_ = INT_MAX, block_size_ = 1, num_blocks_ = 0;  // of the tables and caches the ops read
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<Op>> ops_;
  std::unique_ptr<std::atomic<int>[]> next_;
  std::vector<double> seconds_;  // of each op; empty: not profiled
  int reserved_k_ = 0;
  std::unique_ptr<Memory> staged_, quantized_memory_, fixed_memory_;
  QuantizedRows quantized_{};
  FixedRows fixed_{};
};

}  // namespace headway
