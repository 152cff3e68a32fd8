// How large a synthetic tensor's values are, by its name. The numbers were read off the golden checkpoints, whose
// sublayers add 5 to 15% of the residual stream's size (golden/README.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/inventory.h"

namespace mdi {

struct Recipe {
  enum class Storage : uint8_t { kReal, kE4M3, kE2M1 };
  Storage storage = Storage::kReal;  // of the weight, also for a scale tensor
  std::string base;                  // the name without ".weight" or ".scale": a weight and its scale share it
  int64_t fan_in = 1;                // logical input channels
  float mean = 0;
  double spread = 0;     // standard deviation, dequantised
  float row_spread = 0;  // rows differ in size by exp(row_spread * normal)
  bool row_scales = false;
  // What the `trained` traits may do to it.
  bool dead_rows = false, zero_blocks = false, routing = false;
  std::string norm;             // base name of the norm before it, whose outlier channels it shares; empty: none
  bool is_norm = false;         // it is that norm
  bool large_channels = false;  // it may have channels 1,000 times larger, besides those 1,000 times smaller
};

// `spec` is one of inventory(config). A name that no rule knows gets weights of 1/sqrt(fan_in).
Recipe tensor_recipe(const ModelConfig& config, const TensorSpec& spec);

// A key for (name, seed).
uint64_t name_key(std::string_view name, uint64_t seed);

}  // namespace mdi
