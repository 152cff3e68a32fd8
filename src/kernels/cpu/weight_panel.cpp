#include "kernels/cpu/weight_panel.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/weight_codes.h"

namespace mdi::cpu {

namespace {

constexpr int kStripBytes = 64;                  // of each row
constexpr int kPrefetchBytes = 2 * kStripBytes;  // ahead of a row's strip
constexpr int64_t kScaleBlock = 32;              // columns of a scale

// Scale bytes beyond these leave too little room for a value of 448 above or a subnormal code below.
constexpr int kHighestScale = 235, kLowestScale = 64, kSafeScale = 191;

int64_t blocks_of(const LinearWeight& w) { return (w.k + kScaleBlock - 1) / kScaleBlock; }

int64_t row_bytes(const LinearWeight& w) {
  switch (w.kind) {
    case WeightKind::kE4M3:
      return w.k;
    case WeightKind::kE2M1:
      return w.k / 2;
    case WeightKind::kBF16:
      return w.k * 2;
    case WeightKind::kF32:
      break;
  }
  return w.k * 4;
}

const e8m0* scale_row(const LinearWeight& w, int64_t row) {
  return w.scale + (w.kind == WeightKind::kE4M3 ? row / kScaleBlock : row) * blocks_of(w);
}

// No scale of a panel needs a shift: the usual case.
bool scales_are_plain(const e8m0* first, const e8m0* last) {
  uint8_t lowest = 255, highest = 0;
  for (const e8m0* s = first; s != last; ++s) {
    lowest = std::min(lowest, s->bits);
    highest = std::max(highest, s->bits);
  }
  return lowest >= kLowestScale && highest <= kHighestScale;
}

// The largest scale that is a number.
uint8_t largest_scale(const e8m0* scale, int64_t blocks) {
  uint8_t largest = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    largest = std::max(largest, static_cast<uint8_t>(scale[b].bits == 255 ? 0 : scale[b].bits));
  }
  return largest;
}

// ---- where values go: columns k and k + 1 of rows [16 g, 16 g + 16) ----------------------------------------------

struct FloatSink {
  float* out;
  void put(int64_t k, int g, Lanes even, Lanes odd) const {
    store(out + k * kPanel + g * kGroup, even);
    store(out + (k + 1) * kPanel + g * kGroup, odd);
  }
};

struct PairSink {
  bf16* out;
  void put(int64_t k, int g, Lanes even, Lanes odd) const {
    const Words both = (as_words(even) >> 16) | (as_words(odd) & 0xFFFF0000u);
    std::memcpy(static_cast<void*>(out + k * kPanel + 2 * g * kGroup), &both, sizeof both);
  }
};

struct PlainSink {
  bf16* out;
  void put(int64_t k, int g, Lanes even, Lanes odd) const {
    for (int i = 0; i < kGroup; ++i) {
      out[k * kPanel + g * kGroup + i].bits = static_cast<uint16_t>(as_words(even)[i] >> 16);
      out[(k + 1) * kPanel + g * kGroup + i].bits = static_cast<uint16_t>(as_words(odd)[i] >> 16);
    }
  }
};

// ---- strips -------------------------------------------------------------------------------------------------------

// The scale bytes of a strip: lane i holds those of row i, one block after the other. Past the end of the row: 0, where
// the codes are 0 too.
template <class Code>
inline Words scale_bytes(const WeightPanel& p, int g, int rows, int64_t k) {
  constexpr int64_t kBlocks = kGroup * Code::kPerWord / kScaleBlock;
  const int64_t count = std::min(kBlocks, blocks_of(p.w) - k / kScaleBlock);
  if (count <= 0) return Words{};
  const e8m0* from = scale_row(p.w, p.first + g * kGroup) + k / kScaleBlock;
  const int64_t stride = p.w.kind == WeightKind::kE4M3 ? 0 : blocks_of(p.w);  // 16 rows share e4m3 blocks of 32 rows
  uint32_t bytes[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    bytes[i] = 0;
    if (count == kBlocks) {
      std::memcpy(&bytes[i], from, kBlocks);
    } else {
      std::memcpy(&bytes[i], from, static_cast<size_t>(count));
    }
    from += i + 1 < rows ? stride : 0;
  }
  Words words;
  std::memcpy(&words, bytes, sizeof words);
  return words;
}

// Words of 16 rows, transposed, to values at columns `at` and on.
template <class Code, class Sink>
inline void put_words(const Words* r, Words scale, Shifts shift, int g, int64_t at, Sink sink) {
  constexpr int kWordsPerBlock = std::min<int>(kGroup, kScaleBlock / Code::kPerWord);
  for (int first = 0; first < kGroup; first += kWordsPerBlock) {
    const Code code(scale_values(scale & 255u, shift));
    scale >>= 8;
    for (int i = first; i < first + kWordsPerBlock; i += Code::kPerWord == 1 ? 2 : 1) {
      const int64_t column = at + i * Code::kPerWord;
      if constexpr (Code::kPerWord == 1) {
        sink.put(column, g, code.value(r[i], 0), code.value(r[i + 1], 0));
      } else {
        for (int j = 0; j < Code::kPerWord; j += 2) {
          sink.put(column + j, g, code.value(r[i], j), code.value(r[i], j + 1));
        }
      }
    }
  }
}

template <class Code, class Sink>
void expand_strip(const WeightPanel& p, int g, int64_t k0, int64_t k, Sink sink) {
  const int rows = std::min(kGroup, p.rows - g * kGroup);
  const int64_t stride = row_bytes(p.w);
  const int64_t offset = std::min(stride, k * 4 / Code::kPerWord);
  const int64_t bytes = std::min<int64_t>(kStripBytes, stride - offset);
  const std::byte* from = static_cast<const std::byte*>(p.w.data) + (p.first + g * kGroup) * stride + offset;
  const auto load_row = [bytes](const std::byte* row) {
    return bytes == kStripBytes ? load_words(row) : load_words(row, bytes);
  };
  Words r[kGroup];
  if (bytes == kStripBytes && rows == kGroup) {
    for (int i = 0; i < kGroup; ++i) {
      __builtin_prefetch(from + i * stride + kPrefetchBytes);  // too many streams for the hardware to follow
      r[i] = load_words(from + i * stride);
    }
  } else {
    for (int i = 0; i < kGroup; ++i) r[i] = load_row(from + std::min(i, rows - 1) * stride);
  }
  transpose(r);
  Words scale = {};
  Shifts shift = {};
  if constexpr (Code::kScaled) {
    scale = scale_bytes<Code>(p, g, rows, k);
    std::memcpy(&shift, p.shift + g * kGroup, sizeof shift);
  }
#ifdef __AVX512F__
  if constexpr (std::is_same_v<Code, E4M3>) {
    if (!has_nan_code(r)) return put_words<E4M3Table>(r, scale, shift, g, k - k0, sink);
  }
#endif
  put_words<Code>(r, scale, shift, g, k - k0, sink);
}

template <class Code, class Sink>
void expand(const WeightPanel& p, int64_t k0, int64_t k1, Sink sink) {
  constexpr int64_t kWidth = kGroup * Code::kPerWord;
  const int groups = (p.rows + kGroup - 1) / kGroup;
  for (int64_t k = k0; k < k1; k += kWidth) {
    for (int g = 0; g < groups; ++g) expand_strip<Code>(p, g, k0, k, sink);
  }
}

template <class Sink>
void expand(const WeightPanel& p, int64_t k0, int64_t k1, Sink sink) {
  switch (p.w.kind) {
    case WeightKind::kE4M3:
      return expand<E4M3>(p, k0, k1, sink);
    case WeightKind::kE2M1:
      return expand<E2M1>(p, k0, k1, sink);
    case WeightKind::kBF16:
      return expand<BF16>(p, k0, k1, sink);
    case WeightKind::kF32:
      return expand<F32>(p, k0, k1, sink);
  }
}

}  // namespace

WeightPanel weight_panel(const LinearWeight& w, int64_t first) {
  WeightPanel p;
  p.w = w;
  p.first = first;
  p.rows = static_cast<int>(std::min<int64_t>(kPanel, w.n - first));
  if (w.scale == nullptr || scales_are_plain(scale_row(w, first), scale_row(w, first + p.rows - 1) + blocks_of(w)))
    return p;
  for (int i = 0; i < p.rows; ++i) {
    if (w.kind == WeightKind::kE4M3 && i > 0 && (first + i) % kScaleBlock != 0) {
      p.shift[i] = p.shift[i - 1];  // the same row of blocks
      continue;
    }
    const int largest = largest_scale(scale_row(w, first + i), blocks_of(w));
    if (largest > kHighestScale) p.shift[i] = largest - kSafeScale;
    if (largest < kLowestScale) p.shift[i] = largest - kLowestScale;
    p.shifted = p.shifted || p.shift[i] != 0;
  }
  return p;
}

int64_t strip_width(WeightKind kind) {
  switch (kind) {
    case WeightKind::kE4M3:
      return kGroup * E4M3::kPerWord;
    case WeightKind::kE2M1:
      return kGroup * E2M1::kPerWord;
    case WeightKind::kBF16:
      return kGroup * BF16::kPerWord;
    case WeightKind::kF32:
      break;
  }
  return kGroup * F32::kPerWord;
}

void expand_panel(const WeightPanel& p, int64_t k0, int64_t k1, float* out) { expand(p, k0, k1, FloatSink{out}); }

void expand_panel(const WeightPanel& p, int64_t k0, int64_t k1, bool pairs, bf16* out) {
  if (pairs) {
    expand(p, k0, k1, PairSink{out});
  } else {
    expand(p, k0, k1, PlainSink{out});
  }
}

}  // namespace mdi::cpu
