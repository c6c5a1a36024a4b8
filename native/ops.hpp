// The operations of a step program, one maker each; Program's methods of the same names say what they do.
#pragma once
#include <memory>

#include "program.hpp"

namespace headway {

std::unique_ptr<Op> make_embed(std::shared_ptr<Weight> table, float scale, TensorRef out);
std::unique_ptr<Op> make_rms_norm(TensorRef x, std::shared_ptr<Memory> weight, float eps, TensorRef out);
std::unique_ptr<Op> make_linear(TensorRef x, LinearSpec spec, TensorRef out);
std::unique_ptr<Op> make_rope_and_store(TensorRef q, TensorRef k, TensorRef v, std::shared_ptr<Memory> table,
                                        std::shared_ptr<KVCacheLayer> kv, TensorRef out);
std::unique_ptr<Op> make_attention(TensorRef q, std::shared_ptr<KVCacheLayer> kv, float scale, int window, TensorRef out);
std::unique_ptr<Op> make_gated_activation(TensorRef gate_up, Activation kind, TensorRef out);
std::unique_ptr<Op> make_add(TensorRef x, TensorRef y, TensorRef out);
std::unique_ptr<Op> make_take_logit_rows(TensorRef x, TensorRef out);

}  // namespace headway
