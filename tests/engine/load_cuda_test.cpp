// Whether a model fits is said from its configuration alone, before anything is loaded.
#include "engine/load_cuda.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "core/error.h"
#include "engine/load.h"

namespace mdi {
namespace {

ModelConfig config_of(const std::string& file) {
  return load_config(std::filesystem::path(MDI_SOURCE_DIR) / "tests/data" / file);
}

std::string refusal(const ModelConfig& config, uint64_t free) {
  try {
    check_room(config, "Some Card", free);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CheckRoom, ATinyModelFitsWhereItsScratchFits) {
  const ModelConfig config = config_of("golden/tiny-vision/config.json");
  EXPECT_EQ(refusal(config, uint64_t{8'000'000'000}), "");
  const std::string message = refusal(config, uint64_t{1'000'000'000});
  EXPECT_EQ(message.find("Some Card: the model needs "), 0u) << message;
  for (const char* part : {"1000000000 are free", "too few", "weights", "sequences", "workspaces", "vision tower",
                           "reserve", "4294967296 for one operation at a time"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  }
}

TEST(CheckRoom, TheReleasedModelDoesNotFitOneCard) {
  const std::string message = refusal(config_of("config/released.json"), uint64_t{150'000'000'000});
  EXPECT_NE(message.find("150000000000 are free"), std::string::npos) << message;
  EXPECT_NE(message.find("engram tables"), std::string::npos) << message;
}

#ifndef MDI_WITH_CUDA
TEST(LoadForCuda, ABuildWithoutItSaysSoBeforeItReadsAnything) {
  try {
    load_for_cuda("/nowhere");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no CUDA backend"), std::string::npos) << e.what();
  }
}
#endif

}  // namespace
}  // namespace mdi
