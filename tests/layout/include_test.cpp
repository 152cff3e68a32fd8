// A room includes only itself and the rooms below it (docs/architecture.md). The build links a room only to what it may
// use; this test also catches a header that reaches upward.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
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
    {"grammar", {"core", "text"}},
    {"http", {"core"}},
    {"server", {"core", "checkpoint", "text", "vision", "kernels", "model", "cache", "engine", "grammar", "http"}},
    {"cli",
     {"core", "checkpoint", "text", "vision", "kernels", "model", "cache", "engine", "cluster", "grammar", "http",
      "server"}},
};

// "room -> other" for an include of `text` that `room` may not make; empty when all are allowed.
std::string upward_include(const std::string& room, const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string directive, file;
    words >> directive >> file;
    if (directive != "#include" || file.size() < 2 || file.front() != '"') continue;
    const auto slash = file.find('/');
    if (slash == std::string::npos) continue;
    const std::string used = file.substr(1, slash - 1);
    if (used != room && kMayUse.at(room).count(used) == 0) return room + " -> " + used;
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
  int targets = 0;
  for (size_t at = text.find("mdi_room("); at != std::string::npos; at = text.find("mdi_room(", at + 1), ++targets) {
    const size_t begin = at + std::string("mdi_room(").size();
    std::istringstream words(text.substr(begin, text.find(')', begin) - begin));
    std::string room, word;
    words >> room;
    ASSERT_EQ(kMayUse.count(room), 1u) << room;
    bool uses = false;
    while (words >> word) {
      if (word == "USES" || word == "LIBS") {
        uses = word == "USES";
      } else if (uses) {
        EXPECT_EQ(kMayUse.at(room).count(word), 1u) << room << " uses " << word;
      }
    }
  }
  EXPECT_GE(targets, 5);
}

}  // namespace
