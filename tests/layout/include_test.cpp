// A room includes only itself and the rooms below it (docs/architecture.md). The build links a room only to what it may
// use; this test also catches a header that reaches upward.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::set<std::string>> kMayUse = {
    {"core", {}},
    {"checkpoint", {"core"}},
    {"text", {"core"}},
    {"vision", {"core"}},
    {"kernels", {"core"}},
    {"model", {"core", "checkpoint", "kernels", "vision"}},
    {"cache", {"core"}},
    {"engine", {"core", "checkpoint", "text", "vision", "kernels", "model", "cache"}},
    {"cluster", {"core", "kernels"}},
    {"server", {"core", "checkpoint", "text", "vision", "kernels", "model", "cache", "engine"}},
    {"cli", {"core", "checkpoint", "text", "vision", "kernels", "model", "cache", "engine", "cluster", "server"}},
};

// "room -> other" for an include of `text` that `room` may not make; empty when all are allowed.
std::string upward_include(const std::string& room, const std::string& text) {
  static const std::regex include(R"re(^\s*#\s*include\s*"([^"/]+)/[^"]+")re", std::regex::multiline);
  for (std::sregex_iterator it(text.begin(), text.end(), include), end; it != end; ++it) {
    const std::string used = (*it)[1];
    if (used == room || kMayUse.at(room).count(used) == 1) continue;
    return room + " -> " + used;
  }
  return {};
}

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Layout, NoRoomIncludesUpward) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(MDI_SOURCE_DIR) / "src")) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
    const fs::path relative = fs::relative(entry.path(), fs::path(MDI_SOURCE_DIR) / "src");
    const std::string room = relative.begin()->string();
    ASSERT_EQ(kMayUse.count(room), 1u) << "a folder that is not a room: " << relative;
    EXPECT_EQ(upward_include(room, read(entry.path())), "") << relative;
    ++files;
  }
  EXPECT_GT(files, 40);
}

TEST(Layout, AnUpwardIncludeIsSeen) {
  EXPECT_EQ(upward_include("core", "#include <vector>\n  #include \"engine/load.h\"\n"), "core -> engine");
  EXPECT_EQ(upward_include("model", "#include \"text/bpe.h\"\n"), "model -> text");
  EXPECT_EQ(upward_include("model", "#include \"model/step.h\"\n#include \"core/error.h\"\n"), "");
}

// Every room that has sources is a target that links no room above it.
TEST(Layout, TargetsUseOnlyRoomsBelow) {
  const std::string text = read(fs::path(MDI_SOURCE_DIR) / "src/CMakeLists.txt");
  static const std::regex target(R"re(mdi_room\((\w+)([^)]*)\))re");
  int targets = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), target), end; it != end; ++it, ++targets) {
    const std::string room = (*it)[1];
    const std::string rest = (*it)[2];
    ASSERT_EQ(kMayUse.count(room), 1u) << room;
    const auto uses = rest.find("USES");
    if (uses == std::string::npos) continue;
    std::istringstream words(rest.substr(uses + 4));
    for (std::string word; words >> word && word != "LIBS";) {
      EXPECT_EQ(kMayUse.at(room).count(word), 1u) << room << " uses " << word;
    }
  }
  EXPECT_GE(targets, 5);
}

}  // namespace
