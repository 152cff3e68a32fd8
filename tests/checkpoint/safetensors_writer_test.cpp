// Files that are written in any order, with holes, and disks that are full.
#include "checkpoint/safetensors_writer.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "checkpoint/safetensors.h"
#include "core/error.h"

namespace mdi {
namespace {

namespace fs = std::filesystem;

std::vector<TensorSpec> some_tensors() {
  return {{"a", DType::kF32, 1, {3}}, {"b.weight", DType::kE4M3, 2, {32, 64}}, {"b.scale", DType::kE8M0, 2, {1, 2}}};
}

TEST(SafetensorsWriter, WhatIsWrittenIsRead) {
  std::string folder = testing::TempDir() + "/writer_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const fs::path path = fs::path(folder) / "model.safetensors";
  const auto tensors = some_tensors();
  const SafetensorsLayout layout = safetensors_layout(tensors);
  EXPECT_EQ(layout.header.size() % 8, 0u);
  EXPECT_EQ(layout.offsets[0], layout.header.size());
  EXPECT_EQ(layout.file_size, layout.header.size() + 12 + 2048 + 2);
  {
    OutputFile file(path);
    file.resize(layout.file_size);
    // The last tensor first, the middle one never.
    const char scales[2] = {120, 121};
    file.write_at(layout.offsets[2], scales, 2);
    const float values[3] = {1, 2, 3};
    file.write_at(layout.offsets[0], values, sizeof(values));
    file.write_at(0, layout.header.data(), layout.header.size());
    file.sync();
    file.close();
  }
  const SafetensorsFile read(path);
  ASSERT_EQ(read.header().tensors.size(), 3u);
  const auto& entries = read.header().tensors;
  EXPECT_EQ(read.view(entries[0]).as<float>()[2], 3.0f);
  EXPECT_EQ(read.view(entries[1]).as<uint8_t>()[2047], 0);
  EXPECT_EQ(read.view(entries[2]).as<uint8_t>()[1], 121);
  fs::remove_all(folder);
}

TEST(SafetensorsWriter, NoTensorsIsAFileToo) {
  const SafetensorsLayout layout = safetensors_layout({});
  EXPECT_EQ(layout.file_size, layout.header.size());
}

TEST(SafetensorsWriter, AFullDiskIsSaid) {
  OutputFile file("/dev/full");
  try {
    file.write_at(0, "x", 1);
    FAIL() << "wrote to a full disk";
  } catch (const Error& e) {
    EXPECT_NE(std::strstr(e.what(), "/dev/full: the disk is full"), nullptr) << e.what();
  }
}

TEST(SafetensorsWriter, AFileThatCannotBeMadeIsNamed) {
  try {
    OutputFile file("/proc/none/model.safetensors");
    FAIL() << "made a file in /proc";
  } catch (const Error& e) {
    EXPECT_NE(std::strstr(e.what(), "/proc/none/model.safetensors"), nullptr) << e.what();
  }
}

}  // namespace
}  // namespace mdi
