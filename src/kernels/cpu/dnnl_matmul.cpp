#include "kernels/cpu/dnnl_matmul.h"

#include <dnnl_version.h>
#include <omp.h>

#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/weight_panel.h"

namespace mdi::cpu {

namespace {

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// What a thread needs to run a product: oneDNN's memory objects are handles that are set before each call.
struct Handles {
  dnnl::memory a, b, c, scratchpad;
  std::vector<std::byte> scratch;
};

}  // namespace

struct DnnlMatmul::State {
  dnnl::matmul primitive;
  dnnl::memory::desc a, b, c, scratchpad;
  bool pairs = false;
};

DnnlMatmul::DnnlMatmul(std::unique_ptr<State> state) : state_(std::move(state)) {}
DnnlMatmul::~DnnlMatmul() = default;

std::unique_ptr<DnnlMatmul> DnnlMatmul::make(Operand operand, int rows, int64_t k) {
  using dnnl::memory;
  omp_set_num_threads(1);  // ours are the threads; oneDNN fixes a product's thread count when it is made
  const auto type = operand == Operand::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
  dnnl::post_ops sum;
  sum.append_sum(1.0f);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(sum);
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);

  auto state = std::make_unique<State>();
  state->a = memory::desc({rows, k}, type, memory::format_tag::ab);
  state->c = memory::desc({rows, kPanel}, memory::data_type::f32, memory::format_tag::ab);
  try {
    // The packed order only where a kernel reads it as it is; elsewhere oneDNN has nothing but its reference loop.
    for (const bool pairs : {true, false}) {
      if (pairs && operand == Operand::kF32) continue;
      state->b = memory::desc({k, kPanel}, type, pairs ? memory::format_tag::BA16a64b2a : memory::format_tag::ab);
      const dnnl::matmul::primitive_desc description({state->a, state->b, state->c}, attributes, cpu_engine());
      if (pairs && std::strncmp(description.impl_info_str(), "brg", 3) != 0) continue;
      if (std::strncmp(description.impl_info_str(), "ref", 3) == 0) return nullptr;
      state->pairs = pairs;
      state->scratchpad = description.scratchpad_desc();
      state->primitive = dnnl::matmul(description);
      break;
    }
  } catch (const dnnl::error&) {
    return nullptr;
  }
  return std::unique_ptr<DnnlMatmul>(new DnnlMatmul(std::move(state)));
}

bool DnnlMatmul::pairs() const { return state_->pairs; }

void DnnlMatmul::multiply(const void* a, const void* b, float* c) const {
  thread_local dnnl::stream stream(cpu_engine());
  thread_local std::unordered_map<const State*, Handles> handles;
  Handles& h = handles[state_.get()];
  if (!h.a) {
    h.scratch.resize(state_->scratchpad.get_size());
    h.a = dnnl::memory(state_->a, cpu_engine(), nullptr);
    h.b = dnnl::memory(state_->b, cpu_engine(), nullptr);
    h.c = dnnl::memory(state_->c, cpu_engine(), nullptr);
    h.scratchpad = dnnl::memory(state_->scratchpad, cpu_engine(), h.scratch.data());
  }
  omp_set_num_threads(1);
  h.a.set_data_handle(const_cast<void*>(a));
  h.b.set_data_handle(const_cast<void*>(b));
  h.c.set_data_handle(c);
  // The C call: the C++ one builds a map of its arguments each time.
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, h.a.get()},
                                  {DNNL_ARG_WEIGHTS, h.b.get()},
                                  {DNNL_ARG_DST, h.c.get()},
                                  {DNNL_ARG_SCRATCHPAD, h.scratchpad.get()}};
  dnnl::error::wrap_c_api(dnnl_primitive_execute(state_->primitive.get(), stream.get(), 4, args),
                          "oneDNN refused a product that it made");
}

bool dnnl_present() { return true; }

const char* dnnl_version_text() {
  static const std::string text = "oneDNN " + std::to_string(DNNL_VERSION_MAJOR) + "." +
                                  std::to_string(DNNL_VERSION_MINOR) + "." + std::to_string(DNNL_VERSION_PATCH);
  return text.c_str();
}

const char* dnnl_isa() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    case dnnl::cpu_isa::avx2:
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2";
    default:
      return "older than avx2";
  }
}

bool dnnl_has_amx_bf16() { return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx; }

}  // namespace mdi::cpu
