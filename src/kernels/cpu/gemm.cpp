#include "kernels/cpu/gemm.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/fma_kernel.h"
#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/weight_panel.h"

// y = x . w^T, computed as: for each panel of 64 outputs, for each block of 512 columns of k, expand the panel's block
// and add its product with the rows to the panel's sums. The order of a sum is therefore (block 0) + (block 1) + ...,
// for every m; inside a block it is what gemm_tiles.h proved to be the same for every m.

namespace mdi::cpu {

namespace {

constexpr int64_t kRoundK = 32;  // k of a product is padded to this with zeros

// Rows that share one expansion of a panel. At 512, expanding (0.15 ns a weight, measured) is 3% of an f32 product.
constexpr int64_t kChunk = 512;
// Panels that share one conversion of the rows to the operand's type. Matrix units multiply a row in less time than a
// conversion takes for few panels.
constexpr int kPanelsF32 = 2;
constexpr int kPanelsBF16 = 8;

struct Scratch {  // 656 KiB: f32 machines have second-level caches of 1 MiB and more
  alignas(64) float weights[kPanelsF32][kBlockK * kPanel];
  alignas(64) float rows[kTileRows * kBlockK];
  alignas(64) float chain[kTileRows * kPanel];
  alignas(64) float sums[kPanelsF32][kChunk * kPanel];
};

struct ScratchBF16 {  // 1.75 MiB: machines with matrix units have 2 MiB
  alignas(64) bf16 weights[kPanelsBF16][kBlockK * kPanel];
  alignas(64) bf16 rows[kLargeRows * kBlockK];
  alignas(64) float sums[kPanelsBF16][kChunk * kPanel];
};

template <class T>
T& scratch() {
  thread_local std::vector<T> memory(1);  // on the heap: a thread's own storage is small
  return memory.front();
}

// The part of a product that one task computes: rows [row, row + rows) by panels [panel, panel + panels).
struct Part {
  int64_t row = 0, rows = 0, panel = 0, panels = 0;
};

int64_t padded(int64_t k) { return (k + kRoundK - 1) / kRoundK * kRoundK; }

// Columns [k0, k0 + k) of rows of x, as floats, zero up to the padded width.
void rows_to_f32(const bf16* x, int64_t ldx, int64_t rows, int64_t k, float* out) {
  const int64_t width = padded(k);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < k; ++j) out[i * width + j] = to_float(x[i * ldx + j]);
    for (int64_t j = k; j < width; ++j) out[i * width + j] = 0.0f;
  }
}

void copy_rows(const bf16* x, int64_t ldx, int64_t rows, int64_t k, bf16* out) {
  const int64_t width = padded(k);
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(x + i * ldx, k, out + i * width);
    std::fill(out + i * width + k, out + (i + 1) * width, bf16{});
  }
}

void undo_shift(const WeightPanel& p, int64_t rows, float* sums) {
  for (int n = 0; n < kPanel; ++n) {
    const float factor = std::ldexp(1.0f, p.shift[n]);
    for (int64_t i = 0; i < rows; ++i) sums[i * kPanel + n] *= factor;
  }
}

// Sums of a panel to y.
void store_sums(const GemmArgs& a, const WeightPanel& p, int64_t row, int64_t rows, float* sums) {
  if (p.shifted) undo_shift(p, rows, sums);
  for (int64_t i = 0; i < rows; ++i) {
    const float* s = sums + i * kPanel;
    const int64_t at = (row + i) * a.ldy + p.first;
    if (a.y_f32 != nullptr) std::copy_n(s, p.rows, a.y_f32 + at);
    if (a.y_bf16 != nullptr) {
      for (int n = 0; n < p.rows; ++n) a.y_bf16[at + n] = to_bf16(s[n]);
    }
  }
}

// Fewer rows than a tile: each strip of the panel is multiplied while it is in the first-level cache.
void multiply_few(const GemmArgs& a, const Part& part) {
  auto& s = scratch<Scratch>();
  const int64_t strip = strip_width(a.w.kind);
  for (int64_t p = part.panel; p < part.panel + part.panels; ++p) {
    const WeightPanel panel = weight_panel(a.w, p * kPanel);
    float* sums = s.sums[0];
    std::fill_n(sums, part.rows * kPanel, 0.0f);
    for (int64_t k0 = 0; k0 < a.w.k; k0 += kBlockK) {
      const int64_t k = std::min(kBlockK, a.w.k - k0);
      rows_to_f32(a.x + part.row * a.ldx + k0, a.ldx, part.rows, k, s.rows);
      std::fill_n(s.chain, part.rows * kPanel, 0.0f);
      for (int64_t at = 0; at < k; at += strip) {
        expand_panel(panel, k0 + at, k0 + std::min(at + strip, k), s.weights[0]);
        fma_rows(s.rows + at, padded(k), part.rows, s.weights[0], std::min(strip, k - at), s.chain);
      }
      add_chain(s.chain, part.rows, sums);
    }
    store_sums(a, panel, part.row, part.rows, sums);
  }
}

// Tiles of 64 rows through oneDNN, the remaining rows through our own kernel.
void multiply_f32(const GemmArgs& a, const Part& part) {
  auto& s = scratch<Scratch>();
  WeightPanel panels[kPanelsF32];
  for (int64_t p = 0; p < part.panels; ++p) {
    panels[p] = weight_panel(a.w, (part.panel + p) * kPanel);
    std::fill_n(s.sums[p], part.rows * kPanel, 0.0f);
  }
  for (int64_t k0 = 0; k0 < a.w.k; k0 += kBlockK) {
    const int64_t k = std::min(kBlockK, a.w.k - k0);
    const DnnlMatmul* tile = gemm_mode() == GemmMode::kOwn ? nullptr : f32_tile(padded(k));
    for (int64_t p = 0; p < part.panels; ++p) expand_panel(panels[p], k0, k0 + padded(k), s.weights[p]);
    for (int64_t i = 0; i < part.rows; i += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, part.rows - i);
      rows_to_f32(a.x + (part.row + i) * a.ldx + k0, a.ldx, rows, k, s.rows);
      for (int64_t p = 0; p < part.panels; ++p) {
        float* sums = s.sums[p] + i * kPanel;
        if (rows == kTileRows && tile != nullptr) {
          tile->multiply(s.rows, s.weights[p], sums);
          continue;
        }
        std::fill_n(s.chain, rows * kPanel, 0.0f);
        fma_rows(s.rows, padded(k), rows, s.weights[p], k, s.chain);
        add_chain(s.chain, rows, sums);
      }
    }
  }
  for (int64_t p = 0; p < part.panels; ++p) store_sums(a, panels[p], part.row, part.rows, s.sums[p]);
}

// Large tiles, then small ones; the last is padded with whatever rows the scratch holds.
void multiply_bf16(const GemmArgs& a, const Part& part) {
  auto& s = scratch<ScratchBF16>();
  WeightPanel panels[kPanelsBF16];
  for (int64_t p = 0; p < part.panels; ++p) {
    panels[p] = weight_panel(a.w, (part.panel + p) * kPanel);
    std::fill_n(s.sums[p], (part.rows + kSmallRows - 1) / kSmallRows * kSmallRows * kPanel, 0.0f);
  }
  for (int64_t k0 = 0; k0 < a.w.k; k0 += kBlockK) {
    const int64_t k = std::min(kBlockK, a.w.k - k0);
    const BF16Tiles tiles = bf16_tiles(padded(k));
    for (int64_t p = 0; p < part.panels; ++p) {
      expand_panel(panels[p], k0, k0 + padded(k), tiles.large->pairs(), s.weights[p]);
    }
    for (int64_t i = 0; i < part.rows;) {
      const bool large = part.rows - i >= kLargeRows;
      const int64_t rows = std::min<int64_t>(large ? kLargeRows : kSmallRows, part.rows - i);
      copy_rows(a.x + (part.row + i) * a.ldx + k0, a.ldx, rows, k, s.rows);
      for (int64_t p = 0; p < part.panels; ++p) {
        (large ? tiles.large : tiles.small)->multiply(s.rows, s.weights[p], s.sums[p] + i * kPanel);
      }
      i += rows;
    }
  }
  for (int64_t p = 0; p < part.panels; ++p) store_sums(a, panels[p], part.row, part.rows, s.sums[p]);
}

// Whether w is multiplied in bf16: decided by the weight's kind and k alone, never by m.
bool in_bf16(const LinearWeight& w) {
  if (gemm_mode() != GemmMode::kBF16 || w.kind == WeightKind::kF32) return false;
  const int64_t last = w.k % kBlockK;
  if (w.k >= kBlockK && bf16_tiles(kBlockK).large == nullptr) return false;
  return last == 0 || bf16_tiles(padded(last)).large != nullptr;
}

// How much one task takes. Nothing of it reaches the results: a row's sums are the same in every split.
struct Split {
  int64_t chunk = 0;  // rows
  int64_t group = 0;  // panels
};

Split split_work(const GemmArgs& a, bool bf16_operands, int threads) {
  const int64_t panels = (a.w.n + kPanel - 1) / kPanel;
  const int64_t tile = bf16_operands ? kLargeRows : kTileRows;
  Split s;
  s.chunk = std::min(kChunk, (a.m + tile - 1) / tile * tile);
  s.group = a.m < kTileRows ? 1 : bf16_operands ? kPanelsBF16 : kPanelsF32;
  const auto tasks = [&] { return (panels + s.group - 1) / s.group * ((a.m + s.chunk - 1) / s.chunk); };
  while (s.group > 1 && tasks() < 2 * threads) s.group /= 2;
  while (s.chunk > tile && tasks() < 2 * threads) s.chunk = (s.chunk / 2 + tile - 1) / tile * tile;
  return s;
}

}  // namespace

LinearWeight rows_of(const LinearWeight& w, int64_t first, int64_t n) {
  LinearWeight part = w;
  part.n = n;
  const int64_t blocks = (w.k + 31) / 32;
  switch (w.kind) {
    case WeightKind::kE4M3:
      part.data = static_cast<const e4m3*>(w.data) + first * w.k;
      part.scale = w.scale + first / 32 * blocks;
      break;
    case WeightKind::kE2M1:
      part.data = static_cast<const uint8_t*>(w.data) + first * (w.k / 2);
      part.scale = w.scale + first * blocks;
      break;
    case WeightKind::kBF16:
      part.data = static_cast<const bf16*>(w.data) + first * w.k;
      break;
    case WeightKind::kF32:
      part.data = static_cast<const float*>(w.data) + first * w.k;
      break;
  }
  return part;
}

void gemm(ThreadPool& pool, const GemmArgs& args) {
  if (args.m <= 0 || args.w.n <= 0) return;
  const bool bf16_operands = in_bf16(args.w);
  const bool few = !bf16_operands && args.m < kTileRows;
  const Split split = split_work(args, bf16_operands, pool.size());
  const int64_t panels = (args.w.n + kPanel - 1) / kPanel;
  const int64_t groups = (panels + split.group - 1) / split.group;
  const int64_t tasks = groups * ((args.m + split.chunk - 1) / split.chunk);

  const auto task = [&](int64_t t) {
    Part part;
    part.row = t / groups * split.chunk;
    part.rows = std::min(split.chunk, args.m - part.row);
    part.panel = t % groups * split.group;
    part.panels = std::min(split.group, panels - part.panel);
    if (few) {
      multiply_few(args, part);
    } else if (bf16_operands) {
      multiply_bf16(args, part);
    } else {
      multiply_f32(args, part);
    }
  };
  // Expanding a weight takes about 0.2 ns and multiplying it by a row 0.01 ns; waking the pool takes a few us.
  const double ns = static_cast<double>(args.w.n * args.w.k) * (0.2 + 0.01 * static_cast<double>(args.m));
  if (ns < 10e3) {
    for (int64_t t = 0; t < tasks; ++t) task(t);
  } else {
    pool.for_each(tasks, [&task](int64_t t) { task(t); });
  }
}

const char* gemm_description() {
  static const std::string text = [] {
    const std::string library = fmt::format("{} ({})", dnnl_version_text(), dnnl_isa());
    switch (gemm_mode()) {
      case GemmMode::kBF16:
        return fmt::format("{}, bf16 operands, tiles of {} and {} rows, blocks of {}", library, kLargeRows, kSmallRows,
                           kBlockK);
      case GemmMode::kF32:
        return fmt::format("{} and our own kernel, f32 operands, tiles of {} rows, blocks of {}", library, kTileRows,
                           kBlockK);
      default:
        return fmt::format("our own kernel, f32 operands, blocks of {}", kBlockK);
    }
  }();
  return text.c_str();
}

}  // namespace mdi::cpu
