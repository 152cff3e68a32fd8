#include "checkpoint/synth_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <string_view>

#include "checkpoint/synth_recipe.h"

namespace mdi {

namespace {

constexpr int64_t kBlock = 32;
constexpr double kE4M3Spread =
    92;  // of the codes: a block's largest is then mostly in (224, 448], as a quantiser leaves it
constexpr double kE2M1Spread = 2.2;   // likewise in (3, 6]
constexpr int kOutlierExponent = 10;  // 1,024 times

// Sub-streams of a tensor's key.
enum Stream : uint64_t { kValues, kDeadRows, kZeroBlocks, kExponents, kRowSize, kRouting };
uint64_t stream(uint64_t key, Stream s) { return random_at(key, ~uint64_t{0} - s); }

// ---- tables ------------------------------------------------------------------------------------------------------
// Normal quantiles, so that 16 random bits become one value by a look-up.
struct Tables {
  std::array<float, 65536> normal{};
  std::array<uint8_t, 65536> e4m3_codes{};
  std::array<uint8_t, 65536> e2m1_pairs{};
  std::array<uint8_t, 256> e4m3_divided{};  // the code of a value / 1,024
  double e4m3_rms = 0, e2m1_rms = 0;

  Tables() {
    fill_normal();
    std::array<uint8_t, 256> e2m1{};
    for (size_t i = 0; i < 256; ++i) {
      e2m1[i] = to_e2m1(normal[i * 256 + 128] * static_cast<float>(kE2M1Spread));
      const float v = kE2M1Values[e2m1[i]];
      e2m1_rms += double{v} * double{v} / 256;
      const float divided = to_float(e4m3{static_cast<uint8_t>(i)}) / 1024.0f;
      e4m3_divided[i] = std::isnan(divided) ? uint8_t{0} : to_e4m3(divided).bits;
    }
    for (size_t i = 0; i < 65536; ++i) {
      const auto code = to_e4m3(normal[i] * static_cast<float>(kE4M3Spread));
      e4m3_codes[i] = code.bits;
      e4m3_rms += double{to_float(code)} * double{to_float(code)} / 65536;
      e2m1_pairs[i] = static_cast<uint8_t>(e2m1[i & 255] | (e2m1[i >> 8] << 4));
    }
    e4m3_rms = std::sqrt(e4m3_rms);
    e2m1_rms = std::sqrt(e2m1_rms);
  }

 private:
  // Newton's method on the normal distribution function, each quantile from the one before. Rounded to 2^-14, so that
  // another C library's erfc does not change a checkpoint.
  void fill_normal() {
    double x = 0;
    for (size_t i = 0; i < 32768; ++i) {
      const double p = (static_cast<double>(i) + 0.5) / 65536;  // of the upper half
      for (int step = 0; step < 3; ++step) {
        const double above = 0.5 * std::erfc(-x / std::numbers::sqrt2) - 0.5 - p;
        x -= above * std::sqrt(2 * std::numbers::pi) * std::exp(x * x / 2);
      }
      const auto v = static_cast<float>(std::round(x * 16384) / 16384);
      normal[32768 + i] = v;
      normal[32767 - i] = -v;
    }
  }
};

const Tables& tables() {
  static const Tables t;
  return t;
}

float normal_at(uint64_t key, uint64_t index) { return tables().normal[random_at(key, index) & 0xFFFF]; }

// ---- what weights and their scales agree on ------------------------------------------------------------------------
bool is_dead_row(const TensorFill& f, int64_t row) {
  return f.dead_rows && random_at(stream(f.key, kDeadRows), static_cast<uint64_t>(row)) % 128 == 0;
}

uint64_t block_index(int64_t block_row, int64_t block_column) {
  return (static_cast<uint64_t>(block_row) << 24) | static_cast<uint64_t>(block_column);
}

bool is_zero_block(const TensorFill& f, int64_t block_row, int64_t block_column) {
  return f.zero_blocks && random_at(stream(f.key, kZeroBlocks), block_index(block_row, block_column)) % 64 == 0;
}

// How far the exponents of a tensor's blocks lie apart, 16 equally likely steps.
constexpr std::array<int, 16> kPlainSteps = {-1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1};
constexpr std::array<int, 16> kTrainedSteps = {-5, -4, -3, -2, -2, -1, -1, -1, 0, 0, 0, 0, 0, 0, 1, 2};
const std::array<int, 16>& steps(bool trained) { return trained ? kTrainedSteps : kPlainSteps; }

double steps_power(bool trained) {
  double sum = 0;
  for (const int s : steps(trained)) sum += std::pow(4.0, s) / 16;
  return sum;
}

uint8_t scale_byte(const TensorFill& f, int64_t row, int64_t column) {
  const uint64_t r = random_at(stream(f.key, kExponents), block_index(row, column));
  if (is_zero_block(f, f.row_scales ? row / kBlock : row, column)) {
    // What quantisers leave for a block of zeros differs: the least scale, that of a floor of 1e-4, or 1.
    constexpr std::array<uint8_t, 4> kIdle = {0, 105, 127, 127};
    return kIdle[r % 4];
  }
  int e = f.exponent + steps(f.trained)[r & 15];
  if (static_cast<double>((r >> 8) & 0xFFFFFF) < f.next_exponent * 0x1p24) ++e;
  if (f.trained && (r >> 32) % 1024 == 0) e -= 16;  // a block that no longer fits one scale a row
  for (const SpecialBlock& s : f.special) {
    if (s.block == column && s.large != 0) e += kOutlierExponent;
  }
  return static_cast<uint8_t>(std::clamp(e + 127, 1, 254));
}

// ---- rows ----------------------------------------------------------------------------------------------------------
void real_row(const TensorFill& f, int64_t row, uint8_t* out) {
  const Tables& t = tables();
  const uint64_t key = random_at(stream(f.key, kValues), static_cast<uint64_t>(row));
  const bool dead = is_dead_row(f, row);
  float spread = f.spread;
  if (f.row_spread != 0)
    spread *= std::exp(f.row_spread * normal_at(stream(f.key, kRowSize), static_cast<uint64_t>(row)));
  const auto store = [&](int64_t i, float v) {
    if (f.dtype == DType::kF32) {
      std::memcpy(out + i * 4, &v, 4);
    } else {
      const bf16 b = to_bf16(v);
      std::memcpy(out + i * 2, &b, 2);
    }
  };
  const int64_t n = f.row_elements;
  for (int64_t i = 0; i < n; i += 4) {
    uint64_t bits = random_at(key, static_cast<uint64_t>(i));
    for (int64_t j = i; j < std::min(i + 4, n); ++j, bits >>= 16) {
      store(j, dead ? 0.0f : f.mean + spread * t.normal[bits & 0xFFFF]);
    }
  }
  const auto rescale = [&](int64_t i, float factor) {
    if (i >= n || dead) return;
    const uint64_t bits = random_at(key, static_cast<uint64_t>(i & ~int64_t{3})) >> (16 * (i & 3));
    store(i, (f.mean + spread * t.normal[bits & 0xFFFF]) * factor);
  };
  for (const SpecialBlock& s : f.special) {
    for (int64_t c = 0; c < kBlock; ++c) {
      if ((s.small >> c) & 1u) rescale(s.block * kBlock + c, 0x1p-10f);
      if ((s.large >> c) & 1u) rescale(s.block * kBlock + c, 0x1p10f);
    }
  }
  if (f.zero_blocks) {
    for (int64_t b = 0; b * kBlock < n; ++b) {
      if (!is_zero_block(f, row / kBlock, b)) continue;
      for (int64_t i = b * kBlock; i < std::min((b + 1) * kBlock, n); ++i) store(i, 0.0f);
    }
  }
  if (!f.routing) return;
  const uint64_t favourite = random_at(stream(f.key, kRouting), ~uint64_t{0}) % static_cast<uint64_t>(n);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t kind = random_at(stream(f.key, kRouting), static_cast<uint64_t>(i)) % 8;
    float v = 0;
    std::memcpy(&v, out + i * 4, 4);
    if (kind == 0 || static_cast<uint64_t>(i) == favourite) v += 0.8f;
    if (kind == 1) v -= 0.6f;
    store(i, v);
  }
}

void e4m3_row(const TensorFill& f, int64_t row, uint8_t* out) {
  const int64_t n = f.row_elements;
  if (is_dead_row(f, row)) {
    std::memset(out, 0, static_cast<size_t>(n));
    return;
  }
  const Tables& t = tables();
  const uint64_t key = random_at(stream(f.key, kValues), static_cast<uint64_t>(row));
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const uint64_t bits = random_at(key, static_cast<uint64_t>(i));
    out[i] = t.e4m3_codes[bits & 0xFFFF];
    out[i + 1] = t.e4m3_codes[(bits >> 16) & 0xFFFF];
    out[i + 2] = t.e4m3_codes[(bits >> 32) & 0xFFFF];
    out[i + 3] = t.e4m3_codes[bits >> 48];
  }
  for (; i < n; ++i) out[i] = t.e4m3_codes[random_at(key, static_cast<uint64_t>(i)) & 0xFFFF];
  for (const SpecialBlock& s : f.special) {
    for (int64_t c = 0; c < kBlock && s.block * kBlock + c < n; ++c) {
      uint8_t& code = out[s.block * kBlock + c];
      const bool small = ((s.small >> c) & 1u) != 0;
      const bool large = ((s.large >> c) & 1u) != 0;
      // The block's scale grew by 1,024 for the sake of its large columns.
      if (s.large != 0 && !large) code = t.e4m3_divided[code];
      if (small) code = t.e4m3_divided[code];
    }
  }
  if (!f.zero_blocks) return;
  for (int64_t b = 0; b * kBlock < n; ++b) {
    if (is_zero_block(f, row / kBlock, b)) {
      std::memset(out + b * kBlock, 0, static_cast<size_t>(std::min(kBlock, n - b * kBlock)));
    }
  }
}

void e2m1_row(const TensorFill& f, int64_t row, uint8_t* out) {
  const int64_t n = f.row_bytes;
  if (is_dead_row(f, row)) {
    std::memset(out, 0, static_cast<size_t>(n));
    return;
  }
  const Tables& t = tables();
  const uint64_t key = random_at(stream(f.key, kValues), static_cast<uint64_t>(row));
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const uint64_t bits = random_at(key, static_cast<uint64_t>(i));
    out[i] = t.e2m1_pairs[bits & 0xFFFF];
    out[i + 1] = t.e2m1_pairs[(bits >> 16) & 0xFFFF];
    out[i + 2] = t.e2m1_pairs[(bits >> 32) & 0xFFFF];
    out[i + 3] = t.e2m1_pairs[bits >> 48];
  }
  for (; i < n; ++i) out[i] = t.e2m1_pairs[random_at(key, static_cast<uint64_t>(i)) & 0xFFFF];
  for (const SpecialBlock& s : f.special) {
    for (int64_t c = 0; c < kBlock && s.block * kBlock + c < 2 * n; ++c) {
      // Four bits have no room for a value 1,024 times smaller than its neighbours: it becomes zero.
      const bool zero = ((s.small >> c) & 1u) != 0 || (s.large != 0 && ((s.large >> c) & 1u) == 0);
      const int64_t at = (s.block * kBlock + c) / 2;
      if (zero) out[at] &= static_cast<uint8_t>((c & 1) != 0 ? 0x0F : 0xF0);
    }
  }
  if (!f.zero_blocks) return;
  for (int64_t b = 0; b * kBlock / 2 < n; ++b) {
    if (is_zero_block(f, row / kBlock, b)) {
      std::memset(out + b * kBlock / 2, 0, static_cast<size_t>(std::min(kBlock / 2, n - b * kBlock / 2)));
    }
  }
}

// A few input channels, chosen by the norm that produces them, so that all its readers agree.
std::vector<SpecialBlock> special_channels(uint64_t norm_key, int64_t channels, bool large_too) {
  std::vector<SpecialBlock> out;
  const int64_t each = std::max<int64_t>(1, channels / 1024);
  for (int64_t i = 0; i < 2 * each; ++i) {
    const bool large = i % 2 == 1;
    if (large && !large_too) continue;
    const auto channel =
        static_cast<int64_t>(random_at(norm_key, static_cast<uint64_t>(i)) % static_cast<uint64_t>(channels));
    const int64_t block = channel / kBlock;
    auto at = std::find_if(out.begin(), out.end(), [block](const SpecialBlock& s) { return s.block == block; });
    if (at == out.end()) at = out.insert(at, SpecialBlock{block, 0, 0});
    const uint32_t bit = 1u << (channel % kBlock);
    if (((at->small | at->large) & bit) != 0) continue;
    (large ? at->large : at->small) |= bit;
  }
  return out;
}

}  // namespace

// The finaliser of splitmix64 over a counter.
uint64_t random_at(uint64_t key, uint64_t index) {
  uint64_t z = key + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

TensorFill plan_fill(const ModelConfig& config, const TensorSpec& spec, const SynthTraits& traits) {
  const Recipe recipe = tensor_recipe(config, spec);
  TensorFill f;
  f.dtype = spec.dtype;
  f.rows = spec.rank >= 2 ? spec.shape[0] : 1;
  f.row_bytes = spec.bytes() / std::max<int64_t>(1, f.rows);
  f.row_elements = spec.elements() / std::max<int64_t>(1, f.rows);
  f.key = name_key(recipe.base, traits.seed);
  f.trained = traits.trained;
  f.row_scales = recipe.row_scales;
  f.mean = recipe.mean;
  f.spread = static_cast<float>(recipe.spread);
  f.row_spread = recipe.row_spread;
  if (traits.trained) {
    f.dead_rows = recipe.dead_rows;
    f.zero_blocks = recipe.zero_blocks;
    f.routing = recipe.routing;
    if (!recipe.norm.empty()) {
      f.special = special_channels(name_key(recipe.norm, traits.seed), recipe.fan_in, recipe.large_channels);
      if (recipe.is_norm) {
        for (SpecialBlock& s : f.special) std::swap(s.small, s.large);
      }
    }
  }
  switch (recipe.storage) {
    case Recipe::Storage::kReal:
      return f;
    case Recipe::Storage::kE4M3:
      f.kind = spec.dtype == DType::kE8M0 ? TensorFill::Kind::kScales : TensorFill::Kind::kE4M3;
      break;
    case Recipe::Storage::kE2M1:
      f.kind = spec.dtype == DType::kE8M0 ? TensorFill::Kind::kScales : TensorFill::Kind::kE2M1;
      break;
  }
  // The exponents whose mean power gives the wanted spread exactly: some blocks at floor(log2), the others one above.
  const double rms = recipe.storage == Recipe::Storage::kE4M3 ? tables().e4m3_rms : tables().e2m1_rms;
  const double wanted = std::log2(recipe.spread / (rms * std::sqrt(steps_power(traits.trained))));
  f.exponent = static_cast<int>(std::floor(wanted));
  f.next_exponent = (std::pow(4.0, wanted - std::floor(wanted)) - 1) / 3;
  return f;
}

void fill_rows(const TensorFill& f, int64_t first, int64_t count, uint8_t* out) {
  for (int64_t row = first; row < first + count; ++row, out += f.row_bytes) {
    switch (f.kind) {
      case TensorFill::Kind::kReal:
        real_row(f, row, out);
        break;
      case TensorFill::Kind::kE4M3:
        e4m3_row(f, row, out);
        break;
      case TensorFill::Kind::kE2M1:
        e2m1_row(f, row, out);
        break;
      case TensorFill::Kind::kScales:
        for (int64_t c = 0; c < f.row_elements; ++c) out[c] = scale_byte(f, row, c);
        break;
    }
  }
}

}  // namespace mdi
