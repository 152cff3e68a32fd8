// dnnl_matmul.h in a build without oneDNN (MDI_ONEDNN=OFF): every product takes our own kernel.
#include "kernels/cpu/dnnl_matmul.h"

namespace mdi::cpu {

struct DnnlMatmul::State {};

DnnlMatmul::DnnlMatmul(std::unique_ptr<State> state) : state_(std::move(state)) {}
DnnlMatmul::~DnnlMatmul() = default;
std::unique_ptr<DnnlMatmul> DnnlMatmul::make(Operand, int, int64_t) { return nullptr; }
bool DnnlMatmul::pairs() const { return false; }
void DnnlMatmul::multiply(const void*, const void*, float*) const {}

bool dnnl_present() { return false; }
const char* dnnl_version_text() { return "no oneDNN"; }
const char* dnnl_isa() { return "absent"; }
bool dnnl_has_amx_bf16() { return false; }

}  // namespace mdi::cpu
