// What Python sees of the native code. Every call that computes releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "calibrate.hpp"
#include "checksum.hpp"
#include "cpu.hpp"
#include "pack.hpp"
#include "program.hpp"
#include "sampling.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {
namespace {

template <class T, int N> using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Ints = Array<int32_t, 1>;
using Floats = Array<float, 1>;
using AnyMatrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu, nb::ro>;

std::shared_ptr<Memory> copy_floats(nb::ndarray<const float, nb::c_contig, nb::device::cpu> values) {
  auto memory = std::make_shared<Memory>(values.size() * sizeof(float));
  std::memcpy(memory->data(), values.data(), memory->size());
  return memory;
}

std::shared_ptr<Memory> map_file(int descriptor, size_t bytes) {
  auto memory = Memory::of_file(descriptor, bytes);
  if (memory) return memory;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

std::shared_ptr<Weight> pack_quantized(Array<uint8_t, 2> q, AnyMatrix scale, nb::object minimum, int bits, int zero, bool fixed_point,
                                       bool is_table) {
  const bool wide = scale.dtype() == nb::dtype<float>();
  const int n = int(q.shape(0)), k = int(q.shape(1)), groups = int(scale.shape(1));
  if (int(scale.shape(0)) != n || !groups || k % groups) throw std::invalid_argument("scales do not match the matrix");
  const void* minima = nullptr;
  if (!minimum.is_none()) {
    AnyMatrix m = nb::cast<AnyMatrix>(minimum);
    if (m.shape(0) != scale.shape(0) || m.shape(1) != scale.shape(1) || m.dtype() != scale.dtype())
      throw std::invalid_argument("minima do not match the scales");
    minima = m.data();
  }
  nb::gil_scoped_release release;
  return std::make_shared<Weight>(q.data(), scale.data(), minima, n, k, bits, k / groups, zero, wide, fixed_point, is_table);
}

std::shared_ptr<Weight> pack_dense(AnyMatrix data, const std::string& format) {
  const Format f = format == "f32" ? Format::f32 : format == "f16" ? Format::f16 : Format::bf16;
  if (data.itemsize() != (f == Format::f32 ? 4u : 2u)) throw std::invalid_argument("the array does not hold " + format);
  nb::gil_scoped_release release;
  return std::make_shared<Weight>(data.data(), f, int(data.shape(0)), int(data.shape(1)));
}

using Bytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;
using WritableBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// What a weight's bytes mean: kept beside them in a file, as it is, and given back to `Weight`.
std::vector<int> description(const Weight& weight) {
  const Packing& p = weight.packing();
  return {int(p.format), p.n, p.k, p.group, p.zero, p.wide_scales, p.has_minima, p.fixed_point, p.is_table};
}

std::shared_ptr<Weight> packed_weight(const std::vector<int>& d, std::shared_ptr<Memory> memory, size_t offset) {
  if (d.size() != 9 || d[0] < 0 || d[0] > int(Format::q8)) throw std::invalid_argument("not the description of a packed matrix");
  return std::make_shared<Weight>(Packing{Format(d[0]), d[1], d[2], d[3], d[4], d[5] != 0, d[6] != 0, d[7] != 0, d[8] != 0}, std::move(memory), offset);
}

// Whether a linear op multiplies these weights with int8 activations.
bool is_int8(Format format) { return format == Format::q4 || format == Format::q8; }

TensorRef ref(nb::handle t) {
  return {nb::cast<int>(t.attr("buffer")), nb::cast<int>(t.attr("offset")), nb::cast<int>(t.attr("width"))};
}

Activation activation(const std::string& kind) {
  if (kind == "silu") return Activation::silu;
  if (kind == "gelu_tanh") return Activation::gelu_tanh;
  throw std::invalid_argument("unknown activation '" + kind + "'");
}

void linear(Program& program, nb::handle x, std::vector<std::shared_ptr<Weight>> parts, std::shared_ptr<Memory> bias,
            nb::handle out, std::shared_ptr<Memory> norm, float eps, std::optional<std::string> gated, nb::handle residual) {
  LinearSpec spec{std::move(parts), std::move(bias), std::move(norm), eps, {}, {}};
  if (gated) spec.gated = activation(*gated);
  if (!residual.is_none()) spec.residual = ref(residual);
  program.linear(ref(x), std::move(spec), ref(out));
}

void run(Program& program, Ints token_ids, Ints positions, Ints row_starts, Array<int32_t, 2> block_tables, Ints logit_rows) {
  if (positions.size() != token_ids.size() || row_starts.size() != block_tables.shape(0) + 1)
    throw std::invalid_argument("a step's arrays do not fit together");
  const Step step{int(token_ids.size()), int(block_tables.shape(0)), int(logit_rows.size()), token_ids.data(), positions.data(),
                  row_starts.data(), block_tables.data(), int(block_tables.shape(1)), logit_rows.data()};
  nb::gil_scoped_release release;
  program.run(step);
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> buffer_view(nb::object self, int id, int rows) {
  Program& program = nb::cast<Program&>(self);
  const size_t shape[2] = {size_t(rows), size_t(program.width(id))};
  return {program.buffer(id), 2, shape, self};
}

}  // namespace
}  // namespace headway

NB_MODULE(_native, m) {
  using namespace headway;
  nb::set_leak_warnings(false);

  m.def("available_isas", &available_isas, "Instruction sets this processor can run, best first.");
  m.def("kernel_name", [](const std::string& isa) { return std::string(kernels_for(isa).name); }, "isa"_a);

  m.attr("PACKED_LAYOUT") = kPackedLayout;
  nb::class_<Memory>(m, "Memory")
      .def(nb::init<size_t>(), "bytes"_a)
      .def_static("of_file", &map_file, "descriptor"_a, "bytes"_a)
      .def_prop_ro("nbytes", &Memory::size)
      .def_prop_ro("bytes", [](Memory& memory) { return Bytes(memory.data(), {memory.size()}, nb::find(memory)); });
  nb::class_<Weight>(m, "Weight")
      .def(nb::new_(&packed_weight), "description"_a, "memory"_a, "offset"_a)
      .def_prop_ro("nbytes", &Weight::bytes)
      .def_prop_ro("shape", [](const Weight& w) { return std::pair{w.matrix().n, w.matrix().k}; })
      .def_prop_ro("bytes", [](Weight& w) { return Bytes(w.data(), {w.bytes()}, nb::find(w)); })
      .def_prop_ro("description", &description)
      .def("wide_bytes", [](const Weight& w, const std::string& isa) { return w.wide_bytes(kernels_for(isa)); }, "isa"_a)
      .def("widen", [](Weight& w, const std::string& isa, std::shared_ptr<Memory> memory, size_t offset) {
        w.widen(kernels_for(isa), std::move(memory), offset);
      }, "isa"_a, "memory"_a, "offset"_a)
      .def_prop_ro("is_int8", [](const Weight& w) { return is_int8(w.matrix().format); });
  m.def("checksum", [](nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> bytes) {
    nb::gil_scoped_release release;
    return checksum(bytes.data(), bytes.size());
  }, "bytes"_a);
  nb::class_<KVCacheLayer>(m, "KVCacheLayer")
      .def(nb::init<std::shared_ptr<Memory>, int, int, int, int, int, int, bool>(), "memory"_a, "layer"_a, "layers"_a,
           "num_kv_heads"_a, "head_dim"_a, "num_blocks"_a, "block_size"_a, "is_bf16"_a)
      .def_prop_ro("token_bytes", &KVCacheLayer::token_bytes)
      .def("block", [](KVCacheLayer& kv, int id) { return WritableBytes(kv.block(id), {kv.block_bytes()}, nb::find(kv)); }, "id"_a);
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int, const std::vector<int>&>(), "size"_a, "cpus"_a = std::vector<int>())
      .def_prop_ro("size", &ThreadPool::size);

  m.def("read_bandwidth", &read_bandwidth, "pool"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("int8_rate", [](ThreadPool& pool, const std::string& isa) { return int8_rate(pool, kernels_for(isa)); }, "pool"_a,
        "isa"_a, nb::call_guard<nb::gil_scoped_release>());

  m.def("copy_floats", &copy_floats, "values"_a);
  m.def("pack_quantized", &pack_quantized, "q"_a, "scale"_a, "minimum"_a.none(), "bits"_a, "zero"_a,
        "fixed_point"_a = false, "is_table"_a = false);
  m.def("pack_dense", &pack_dense, "data"_a, "format"_a);

  nb::class_<Program>(m, "Program")
      .def("__init__", [](Program* self, ThreadPool& pool, const std::string& isa, int rows, int logit_rows) {
             new (self) Program(pool, kernels_for(isa), rows, logit_rows);
           }, "pool"_a, "isa"_a, "max_rows"_a, "max_logit_rows"_a, nb::keep_alive<1, 2>())
      .def("add_buffer", &Program::add_buffer, "width"_a, "logit_rows"_a)
      .def("embed", [](Program& p, std::shared_ptr<Weight> t, float s, nb::handle out) { p.embed(t, s, ref(out)); },
           "table"_a, "scale"_a, "out"_a)
      .def("rms_norm", [](Program& p, nb::handle x, std::shared_ptr<Memory> w, float eps, nb::handle out) {
             p.rms_norm(ref(x), w, eps, ref(out));
           }, "x"_a, "weight"_a, "eps"_a, "out"_a)
      .def("linear", &linear, "x"_a, "parts"_a, "bias"_a.none(), "out"_a, "weight"_a.none() = nb::none(), "eps"_a = 0.0f,
           "kind"_a.none() = nb::none(), "residual"_a.none() = nb::none())
      .def("rope_and_store", [](Program& p, nb::handle q, nb::handle k, nb::handle v, std::shared_ptr<Memory> table,
                                std::shared_ptr<KVCacheLayer> kv, nb::handle out) {
             p.rope_and_store(ref(q), ref(k), ref(v), table, kv, ref(out));
           }, "q"_a, "k"_a, "v"_a, "table"_a, "kv"_a, "out"_a)
      .def("attention", [](Program& p, nb::handle q, std::shared_ptr<KVCacheLayer> kv, float scale, int window, nb::handle out) {
             p.attention(ref(q), kv, scale, window, ref(out));
           }, "q"_a, "kv"_a, "scale"_a, "window"_a, "out"_a)
      .def("gated_activation", [](Program& p, nb::handle x, const std::string& kind, nb::handle out) {
             p.gated_activation(ref(x), activation(kind), ref(out));
           }, "gate_up"_a, "kind"_a, "out"_a)
      .def("add", [](Program& p, nb::handle x, nb::handle y, nb::handle out) { p.add(ref(x), ref(y), ref(out)); }, "x"_a, "y"_a,
           "out"_a)
      .def("take_logit_rows", [](Program& p, nb::handle x, nb::handle out) { p.take_logit_rows(ref(x), ref(out)); }, "x"_a, "out"_a)
      .def("run", &run, "token_ids"_a, "positions"_a, "row_starts"_a, "block_tables"_a, "logit_rows"_a)
      .def("profile", &Program::profile, "on"_a)
      .def("seconds", &Program::seconds)
      .def("view", [](nb::object self, int buffer, int rows) { return buffer_view(self, buffer, rows); })
      .def_prop_ro("workspace_bytes", &Program::workspace_bytes);

  bind_sampling(m);
}
