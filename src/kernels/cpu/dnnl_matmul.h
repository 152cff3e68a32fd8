// One oneDNN product of a fixed shape on the calling thread: c[rows, 64] += a[rows, k] . b[k, 64]. A build without
// oneDNN has no such product (dnnl_absent.cpp).
#pragma once

#include <cstdint>
#include <memory>

namespace mdi::cpu {

enum class Operand : uint8_t { kF32, kBF16 };

class DnnlMatmul {
 public:
  // Null when oneDNN has no such product on this machine.
  static std::unique_ptr<DnnlMatmul> make(Operand operand, int rows, int64_t k);
  ~DnnlMatmul();
  DnnlMatmul(const DnnlMatmul&) = delete;
  DnnlMatmul& operator=(const DnnlMatmul&) = delete;

  // a and b dense, of the operand's type; b in the order that pairs() says. Safe from several threads at once.
  void multiply(const void* a, const void* b, float* c) const;

  // bf16: b is [k / 2][64][2] (the order that the matrix instructions read) instead of [k][64].
  bool pairs() const;

 private:
  struct State;
  explicit DnnlMatmul(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

bool dnnl_present();
// "oneDNN 2.6.3" and the instruction set that it uses, for the log; and whether it has matrix units for bf16.
const char* dnnl_version_text();
const char* dnnl_isa();
bool dnnl_has_amx_bf16();

}  // namespace mdi::cpu
