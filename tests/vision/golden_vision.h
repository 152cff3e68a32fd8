// Tensors of tests/data/golden/tiny-vision/expected/vision.safetensors.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/mapped_file.h"

namespace mdi::test {

inline const std::string kGoldenVision = std::string(MDI_SOURCE_DIR) + "/tests/data/golden/tiny-vision/";

template <class T>
std::vector<T> golden_tensor(const std::string& name) {
  static const MappedFile file(kGoldenVision + "expected/vision.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  static const nlohmann::json entries = nlohmann::json::parse(file.text().substr(8, header));
  const auto range = entries.at(name).at("data_offsets");
  const size_t begin = range[0].get<size_t>();
  std::vector<T> values((range[1].get<size_t>() - begin) / sizeof(T));
  std::memcpy(values.data(), file.data() + 8 + header + begin, values.size() * sizeof(T));
  return values;
}

}  // namespace mdi::test
