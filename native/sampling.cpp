#include "sampling.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpu.hpp"
#include "thread_pool.hpp"

namespace nb = nanobind;

namespace headway {
namespace {

constexpr float kGreedyTemperature = 1e-5f;
constexpr double kLogprobFloor = -9999.0;
constexpr float kMostNoise = 16.7f;  // no noise is larger: u is at most 1 - 2^-24
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kNoWeight = -60.0f;  // exp of less, even a million times, changes no bit of a sum that is at least 1
constexpr int kFailed = -1;

template <class T> using List = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The arrays of SamplingBatch, borrowed for one call.
struct Batch {
  const float *temperature, *top_p, *min_p, *presence, *frequency, *repetition, *bias_values;
  const int32_t *top_k, *positions, *num_logprobs;
  const int32_t *bias_starts, *bias_ids, *banned_starts, *banned_ids;
  const int32_t *prompt_starts, *prompt_ids, *output_starts, *output_ids, *output_counts;
  const uint64_t* seeds;
};

struct Outputs {
  int32_t* token_ids;
  float* logprobs;
  int32_t* top_ids;
  float* top_logprobs;
  int width;
};

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = uint64_t(c[0]) * 0xD2511F53u, p1 = uint64_t(c[2]) * 0xCD9E8D57u;
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k0, uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k1, uint32_t(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Noise of one row, by token id; the four ids of a counter share one evaluation when they are asked for in order.
class Gumbel {
 public:
  Gumbel(uint64_t seed, int32_t position) : k0_(uint32_t(seed)), k1_(uint32_t(seed >> 32)), position_(uint32_t(position)) {}
  float operator()(int id) {
    if (id / 4 != counter_) {
      counter_ = id / 4;
      words_ = philox4x32({uint32_t(counter_), position_, 0, 0}, k0_, k1_);
    }
    const float u = (float(words_[id % 4] >> 9) + 0.5f) * 0x1p-23f;
    return -std::log(-std::log(u));
  }

 private:
  uint32_t k0_, k1_, position_;
  int counter_ = -1;
  std::array<uint32_t, 4> words_{};
};

// Ids most likely first, ties to the lower id.
struct MoreLikely {
  const float* w;
  bool operator()(int a, int b) const { return w[a] > w[b] || (w[a] == w[b] && a < b); }
};

class RowSampler {
 public:
  RowSampler(const Kernels& kernels, const Batch& b, int row, int vocab) : kernels_(kernels), b_(b), row_(row), vocab_(vocab) {}

  int sample(const float* logits) {
    const Peak peak = kernels_.find_peak(logits, vocab_);
    if (!peak.is_sound) return kFailed;
    const float* adjusted = is_adjusted() ? adjust(logits) : logits;
    const int best = is_adjusted() ? kernels_.find_peak(adjusted, vocab_).best : peak.best;
    if (!std::isfinite(adjusted[best])) return kFailed;
    if (b_.temperature[row_] < kGreedyTemperature) return best;
    w_.resize(size_t(vocab_));
    for (int i = 0; i < vocab_; i++) w_[size_t(i)] = (adjusted[i] - adjusted[best]) / b_.temperature[row_];
    keep();
    return draw(best);
  }

 private:
  struct Span {
    int begin, end;
  };
  Span span(const int32_t* starts) const { return {starts[row_], starts[row_ + 1]}; }
  static bool is_empty(Span s) { return s.begin == s.end; }

  bool is_adjusted() const {
    const bool penalised = b_.repetition[row_] != 1 || b_.presence[row_] != 0 || b_.frequency[row_] != 0;
    return penalised || !is_empty(span(b_.bias_starts)) || !is_empty(span(b_.banned_starts));
  }

  // Bias, bans and penalties, on a copy: ops/sampling.py's steps 1 to 4.
  const float* adjust(const float* logits) {
    adjusted_.assign(logits, logits + vocab_);
    float* x = adjusted_.data();
    for (auto [i, end] = span(b_.bias_starts); i < end; i++) x[b_.bias_ids[i]] += b_.bias_values[i];
    for (auto [i, end] = span(b_.banned_starts); i < end; i++) x[b_.banned_ids[i]] = kMinusInfinity;
    repeat_penalty(x);
    for (auto [i, end] = span(b_.output_starts); i < end; i++)
      x[b_.output_ids[i]] -= b_.presence[row_] + b_.frequency[row_] * float(b_.output_counts[i]);
    return x;
  }

  // Each distinct id of prompt or output once; both lists are ascending.
  void repeat_penalty(float* x) const {
    const float penalty = b_.repetition[row_];
    if (penalty == 1) return;
    auto [p, p_end] = span(b_.prompt_starts);
    auto [o, o_end] = span(b_.output_starts);
    while (p < p_end || o < o_end) {
      const int in_prompt = p < p_end ? b_.prompt_ids[p] : vocab_, in_output = o < o_end ? b_.output_ids[o] : vocab_;
      const int id = std::min(in_prompt, in_output);
      x[id] = x[id] > 0 ? x[id] / penalty : x[id] * penalty;
      p += in_prompt == id;
      o += in_output == id;
    }
  }

  // Fills kept_, ascending: steps 6 to 8. Without a filter every id is kept, and kept_ stays empty to say so.
  void keep() {
    kept_.clear();
    const int top_k = b_.top_k[row_];
    const float top_p = b_.top_p[row_], min_p = b_.min_p[row_];
    const bool has_k = top_k > 0 && top_k < vocab_;
    if (!has_k && top_p >= 1 && min_p <= 0) return;
    // Beside top_p, ids too unlikely to move a sum of weights are left out from the start.
    const float least = top_p < 1 && !has_k ? kNoWeight : kMinusInfinity;
    kept_.resize(size_t(vocab_));
    size_t num_kept = 0;
    for (int i = 0; i < vocab_; i++) {
      kept_[num_kept] = i;
      num_kept += w_[size_t(i)] >= least;
    }
    kept_.resize(num_kept);
    const MoreLikely more_likely{w_.data()};
    if (has_k) {
      std::nth_element(kept_.begin(), kept_.begin() + top_k - 1, kept_.end(), more_likely);
      kept_.resize(size_t(top_k));
    }
    if (top_p < 1) keep_top_p(top_p, more_likely);
    std::erase_if(kept_, [&](int id) { return weight(id) < double(min_p); });
    std::sort(kept_.begin(), kept_.end());
  }

  // The shortest run of the most likely whose weights reach top_p of all. Mostly a few, so only as many are sorted as are
  // needed: 64, and four times as many until they are enough.
  void keep_top_p(float top_p, MoreLikely more_likely) {
    double total = 0;
    for (int id : kept_) total += weight(id);
    const double enough = double(top_p) * total;
    double cumulative = 0;
    size_t num_kept = 0, num_sorted = 0;
    while (num_kept < kept_.size() && (num_kept == 0 || cumulative < enough)) {
      if (num_kept == num_sorted) num_sorted = sort_more(num_sorted, more_likely);
      cumulative += weight(kept_[num_kept++]);
    }
    kept_.resize(num_kept);
  }

  // Brings the next most likely of kept_ into order behind the `num_sorted` that are; returns how many are then.
  size_t sort_more(size_t num_sorted, MoreLikely more_likely) {
    const size_t target = std::min(kept_.size(), num_sorted ? 4 * num_sorted : 64);
    const auto from = kept_.begin() + std::ptrdiff_t(num_sorted), to = kept_.begin() + std::ptrdiff_t(target);
    if (to != kept_.end()) std::nth_element(from, to, kept_.end(), more_likely);
    std::sort(from, to, more_likely);
    return target;
  }

  double weight(int id) const { return std::exp(double(w_[size_t(id)])); }

  // The largest w + noise. An id so unlikely that the largest noise could not save it is passed over without drawing.
  int draw(int best) {
    Gumbel noise(b_.seeds[row_], b_.positions[row_]);
    float most = noise(best);  // w is 0 there
    int chosen = best;
    const auto consider = [&](int id) {
      const float w = w_[size_t(id)];
      if (w + kMostNoise < most) return;
      const float value = w + noise(id);
      if (value > most || (value == most && id < chosen)) most = value, chosen = id;
    };
    if (kept_.empty()) for (int id = 0; id < vocab_; id++) consider(id);
    else for (int id : kept_) consider(id);
    return chosen;
  }

  const Kernels& kernels_;
  const Batch& b_;
  int row_, vocab_;
  std::vector<float> adjusted_, w_;
  std::vector<int> kept_;
};

void report_logprobs(const Kernels& kernels, const float* logits, int vocab, int token, int count, int row, const Outputs& out) {
  const double largest = logits[kernels.find_peak(logits, vocab).best];
  double total = 0;
  for (int i = 0; i < vocab; i++) total += std::exp(double(logits[i]) - largest);
  const double log_total = std::log(total);
  const auto logprob = [&](int id) { return float(std::max(double(logits[id]) - largest - log_total, kLogprobFloor)); };
  out.logprobs[row] = logprob(token);
  std::vector<int> ids(size_t(count > 0 ? vocab : 0));
  for (size_t i = 0; i < ids.size(); i++) ids[i] = int(i);
  const int shown = std::min(count, vocab);
  if (shown > 0) std::partial_sort(ids.begin(), ids.begin() + shown, ids.end(), MoreLikely{logits});
  for (int i = 0; i < shown; i++) {
    out.top_ids[row * out.width + i] = ids[size_t(i)];
    out.top_logprobs[row * out.width + i] = logprob(ids[size_t(i)]);
  }
}

void sample_rows(const Kernels& kernels, const float* logits, int rows, int vocab, const Batch& b, const Outputs& out, ThreadPool& pool) {
  std::atomic<int> next{0};
  const auto share = [&](int) {
    for (int row; (row = next++) < rows;) {
      const float* own = logits + size_t(row) * size_t(vocab);
      const int token = RowSampler(kernels, b, row, vocab).sample(own);
      out.token_ids[row] = token;
      if (token != kFailed && b.num_logprobs[row] >= 0) report_logprobs(kernels, own, vocab, token, b.num_logprobs[row], row, out);
    }
  };
  if (rows == 1) share(0);  // nothing to share: waking the others would take longer
  else pool.run(share);
}

template <class T> const T* column(nb::handle batch, const char* name, size_t size) {
  auto array = nb::cast<List<T>>(batch.attr(name));
  if (array.size() != size) throw std::invalid_argument(std::string("sampling: ") + name + " has the wrong length");
  return array.data();
}

// A ragged list's starts, its values checked to be that many, and ids inside the vocabulary.
const int32_t* ragged_ids(nb::handle batch, const char* starts_name, const char* ids_name, size_t rows, int vocab,
                          const int32_t** ids) {
  const int32_t* starts = column<int32_t>(batch, starts_name, rows + 1);
  *ids = column<int32_t>(batch, ids_name, size_t(starts[rows]));
  for (int i = 0; i < starts[rows]; i++)
    if ((*ids)[i] < 0 || (*ids)[i] >= vocab) throw std::invalid_argument(std::string("sampling: ") + ids_name + " outside the vocabulary");
  return starts;
}

Batch read_batch(nb::handle h, size_t rows, int vocab) {
  Batch b{};
  b.temperature = column<float>(h, "temperature", rows);
  b.top_k = column<int32_t>(h, "top_k", rows);
  b.top_p = column<float>(h, "top_p", rows);
  b.min_p = column<float>(h, "min_p", rows);
  b.presence = column<float>(h, "presence_penalty", rows);
  b.frequency = column<float>(h, "frequency_penalty", rows);
  b.repetition = column<float>(h, "repetition_penalty", rows);
  b.seeds = column<uint64_t>(h, "seeds", rows);
  b.positions = column<int32_t>(h, "positions", rows);
  b.num_logprobs = column<int32_t>(h, "num_logprobs", rows);
  b.bias_starts = ragged_ids(h, "bias_starts", "bias_ids", rows, vocab, &b.bias_ids);
  b.bias_values = column<float>(h, "bias_values", size_t(b.bias_starts[rows]));
  b.banned_starts = ragged_ids(h, "banned_starts", "banned_ids", rows, vocab, &b.banned_ids);
  b.prompt_starts = ragged_ids(h, "prompt_starts", "prompt_ids", rows, vocab, &b.prompt_ids);
  b.output_starts = ragged_ids(h, "output_starts", "output_ids", rows, vocab, &b.output_ids);
  b.output_counts = column<int32_t>(h, "output_counts", size_t(b.output_starts[rows]));
  return b;
}

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T> using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

void sample(Matrix logits, nb::object batch, ThreadPool& pool, const std::string& isa, Out<int32_t> ids, Out<float> logprobs,
            Out<int32_t> top_ids, Out<float> top_logprobs) {
  const size_t rows = logits.shape(0), width = rows ? top_ids.size() / rows : 0;
  const Batch b = read_batch(batch, rows, int(logits.shape(1)));
  for (size_t i = 0; i < rows; i++)
    if (std::min(b.num_logprobs[i], int(logits.shape(1))) > int(width)) throw std::invalid_argument("sampling: no room for the top logprobs");
  if (ids.size() != rows || logprobs.size() != rows || top_logprobs.size() != top_ids.size())
    throw std::invalid_argument("sampling: outputs do not fit the rows");
  const Outputs out{ids.data(), logprobs.data(), top_ids.data(), top_logprobs.data(), int(width)};
  const Kernels& kernels = kernels_for(isa);
  nb::gil_scoped_release release;
  sample_rows(kernels, logits.data(), int(rows), int(logits.shape(1)), b, out, pool);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  using namespace nb::literals;
  m.def("sample", &sample, "logits"_a, "batch"_a, "pool"_a, "isa"_a, "token_ids"_a, "logprobs"_a, "top_ids"_a, "top_logprobs"_a);
}

}  // namespace headway
