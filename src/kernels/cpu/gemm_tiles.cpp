#include "kernels/cpu/gemm_tiles.h"

#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "kernels/cpu/fma_kernel.h"
#include "kernels/cpu/weight_panel.h"

namespace mdi::cpu {

namespace {

// ---- the mode -------------------------------------------------------------------------------------------------------

std::atomic<GemmMode>& mode() {
  static std::atomic<GemmMode> value{[] {
    const char* text = std::getenv("MDI_CPU_GEMM");
    return gemm_mode_of(text == nullptr ? "" : text);
  }()};
  return value;
}

// ---- proofs ---------------------------------------------------------------------------------------------------------

// Numbers in [-2, 2) with 8 significant bits, exact in bf16, from a counter.
float test_number(uint64_t i) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 29)) * 0xBF58476D1CE4E5B9u;
  return round_bf16(static_cast<float>(static_cast<int64_t>(z) >> 40) * 0x1p-22f);
}

std::vector<float> test_numbers(uint64_t seed, int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = test_number((seed << 32) + i);
  return v;
}

std::vector<bf16> in_bf16(const std::vector<float>& v) {
  std::vector<bf16> out(v.size());
  for (size_t i = 0; i < v.size(); ++i) out[i] = to_bf16(v[i]);
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Every row of the tile against our own chain, on top of sums that are not zero.
bool proved_f32(const DnnlMatmul& tile, int64_t k) {
  const auto a = test_numbers(1, kTileRows * k);
  const auto b = test_numbers(2, k * kPanel);
  auto sum = test_numbers(3, kTileRows * kPanel);
  auto own = sum;
  tile.multiply(a.data(), b.data(), sum.data());
  std::vector<float> chain(own.size());
  fma_rows(a.data(), k, kTileRows, b.data(), k, chain.data());
  add_chain(chain.data(), kTileRows, own.data());
  return same_bits(sum, own);
}

// Every row of the large tile against the small one, there in another place of its tile than here.
bool proved_bf16(const DnnlMatmul& large, const DnnlMatmul& small, int64_t k) {
  const auto a = in_bf16(test_numbers(1, kLargeRows * k));
  const auto b = in_bf16(test_numbers(2, k * kPanel));  // any order: both read the same one
  auto sum = test_numbers(3, kLargeRows * kPanel);
  auto in_small = sum;
  large.multiply(a.data(), b.data(), sum.data());
  std::vector<bf16> rows(static_cast<size_t>(kSmallRows * k));
  std::vector<float> part(static_cast<size_t>(kSmallRows * kPanel));
  for (int64_t first = 0; first < kLargeRows; first += kSmallRows) {
    const auto place = [&](int64_t i) { return first + (i * 5 + first / kSmallRows) % kSmallRows; };
    for (int64_t i = 0; i < kSmallRows; ++i) {
      std::copy_n(a.begin() + place(i) * k, k, rows.begin() + i * k);
      std::copy_n(in_small.begin() + place(i) * kPanel, kPanel, part.begin() + i * kPanel);
    }
    small.multiply(rows.data(), b.data(), part.data());
    for (int64_t i = 0; i < kSmallRows; ++i) {
      std::copy_n(part.begin() + i * kPanel, kPanel, in_small.begin() + place(i) * kPanel);
    }
  }
  return large.pairs() == small.pairs() && same_bits(sum, in_small);
}

// ---- the cache: one entry for each k --------------------------------------------------------------------------------

struct Entry {
  std::atomic<bool> ready{false};
  std::unique_ptr<DnnlMatmul> large, small;
};
using Entries = std::array<Entry, static_cast<size_t>(kBlockK / 32)>;

void prepare(Operand operand, int64_t k, Entry& e) {
  bool proved = false;
  if (operand == Operand::kF32) {
    e.large = DnnlMatmul::make(operand, kTileRows, k);
    proved = e.large != nullptr && proved_f32(*e.large, k);
  } else {
    e.large = DnnlMatmul::make(operand, kLargeRows, k);
    e.small = DnnlMatmul::make(operand, kSmallRows, k);
    proved = e.large != nullptr && e.small != nullptr && proved_bf16(*e.large, *e.small, k);
  }
  if (proved) return;
  const bool found = e.large != nullptr;
  e.large.reset();
  e.small.reset();
  static std::once_flag logged[2];
  std::call_once(logged[static_cast<int>(operand)], [&] {
    spdlog::warn("cpu products: oneDNN ({}) {} for {} operands at k = {}; {} is used there", dnnl_isa(),
                 found ? "gives a row other bits at another number of rows" : "has no kernel",
                 operand == Operand::kF32 ? "f32" : "bf16", k, operand == Operand::kF32 ? "our own kernel" : "f32");
  });
}

const Entry& entry(Operand operand, int64_t k) {
  static Entries entries[2];
  static std::mutex mutex;
  Entry& e = entries[static_cast<int>(operand)][static_cast<size_t>(k / 32 - 1)];
  if (!e.ready.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex);
    if (!e.ready.load(std::memory_order_relaxed)) {
      prepare(operand, k, e);
      e.ready.store(true, std::memory_order_release);
    }
  }
  return e;
}

}  // namespace

GemmMode gemm_mode_of(std::string_view text) {
  if (text == "f32") return GemmMode::kF32;
  if (text == "bf16") return GemmMode::kBF16;
  if (text == "own") return GemmMode::kOwn;
  if (!text.empty()) throw Error("MDI_CPU_GEMM", "expected f32, bf16 or own, found '" + std::string(text) + "'");
  if (!dnnl_present()) return GemmMode::kOwn;
  return dnnl_has_amx_bf16() ? GemmMode::kBF16 : GemmMode::kF32;
}

GemmMode gemm_mode() { return mode().load(std::memory_order_relaxed); }
void set_gemm_mode(GemmMode m) { mode() = m; }

const DnnlMatmul* f32_tile(int64_t k) { return entry(Operand::kF32, k).large.get(); }

BF16Tiles bf16_tiles(int64_t k) {
  const Entry& e = entry(Operand::kBF16, k);
  return {e.large.get(), e.small.get()};
}

}  // namespace mdi::cpu
