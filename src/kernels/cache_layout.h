// Where each byte of a cache row lies: the one type that every writer and every reader uses (spec kv-cache.md).
//
// Window rows stand alone (codes, then scales). Compressed rows and index keys live in blocks of kBlockTokens tokens;
// one block holds the rows of every KV source, each source as four planes (key codes, key scales, kv codes, kv scales)
// so that a tile of rows is one contiguous read of each plane. At the released size a block is 890 * 128 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace mdi {

inline constexpr int kBlockTokens = 128;

// A window row: head_dim e4m3 codes, one e8m0 scale for each 32 of them. 528 bytes at head_dim 512.
struct WindowRow {
  int32_t head_dim = 0;

  int64_t bytes() const { return head_dim + head_dim / 32; }
  static e4m3* codes(std::byte* row) { return reinterpret_cast<e4m3*>(row); }
  static const e4m3* codes(const std::byte* row) { return reinterpret_cast<const e4m3*>(row); }
  e8m0* scales(std::byte* row) const { return reinterpret_cast<e8m0*>(row + head_dim); }
  const e8m0* scales(const std::byte* row) const { return reinterpret_cast<const e8m0*>(row + head_dim); }
};

// The rows of one KV source inside a block. `row` is a compressed position within the block, 0..rows-1.
struct SourceLayout {
  int32_t ratio = 1;     // tokens per compressed row
  int32_t rows = 0;      // kBlockTokens / ratio
  int32_t head_dim = 0;  // compressed KV: e2m1 codes, one e4m3 scale per 16
  int32_t key_dim = 0;   // index key: e2m1 codes, one e8m0 scale per 32
  int64_t key_codes = 0, key_scales = 0, kv_codes = 0, kv_scales = 0;  // byte offsets of the planes in a block

  int64_t key_code_bytes() const { return key_dim / 2; }
  int64_t kv_code_bytes() const { return head_dim / 2; }

  uint8_t* key_codes_at(std::byte* block, int64_t row) const {
    return reinterpret_cast<uint8_t*>(block + key_codes + row * (key_dim / 2));
  }
  e8m0* key_scales_at(std::byte* block, int64_t row) const {
    return reinterpret_cast<e8m0*>(block + key_scales + row * (key_dim / 32));
  }
  uint8_t* kv_codes_at(std::byte* block, int64_t row) const {
    return reinterpret_cast<uint8_t*>(block + kv_codes + row * (head_dim / 2));
  }
  e4m3* kv_scales_at(std::byte* block, int64_t row) const {
    return reinterpret_cast<e4m3*>(block + kv_scales + row * (head_dim / 16));
  }
};

struct CacheLayout {
  std::vector<SourceLayout> sources;  // in the order of kv_source_layers
  int64_t block_bytes = 0;
};

// ratios: one per KV source, each a divisor of kBlockTokens. head_dim % 32 == 0, key_dim % 32 == 0.
inline CacheLayout make_cache_layout(const std::vector<int32_t>& ratios, int32_t head_dim, int32_t key_dim) {
  CacheLayout layout;
  int64_t at = 0;
  for (int32_t ratio : ratios) {
    SourceLayout s;
    s.ratio = ratio;
    s.rows = kBlockTokens / ratio;
    s.head_dim = head_dim;
    s.key_dim = key_dim;
    s.key_codes = at;
    s.key_scales = s.key_codes + int64_t{s.rows} * (key_dim / 2);
    s.kv_codes = s.key_scales + int64_t{s.rows} * (key_dim / 32);
    s.kv_scales = s.kv_codes + int64_t{s.rows} * (head_dim / 2);
    at = s.kv_scales + int64_t{s.rows} * (head_dim / 16);
    layout.sources.push_back(s);
  }
  layout.block_bytes = at;
  return layout;
}

}  // namespace mdi
