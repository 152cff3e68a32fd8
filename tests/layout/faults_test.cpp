// docs/faults.md names a test for each fault: those that it names exist.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What stands between backquotes.
std::vector<std::string> quoted(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = text.find('`'); at != std::string::npos; at = text.find('`', at + 1)) {
    const size_t end = text.find('`', at + 1);
    if (end == std::string::npos) break;
    words.push_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return words;
}

// The sources of a room's tests, one behind the other, on one line: a long TEST is broken over two.
std::string sources_of(const fs::path& folder) {
  std::string all;
  if (!fs::is_directory(folder)) return all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".cpp") all += read(entry.path());
  }
  all.erase(std::remove_if(all.begin(), all.end(), [](char c) { return c == ' ' || c == '\n'; }), all.end());
  return all;
}

enum class Named { kNoTest, kMissing, kThere };

// "room.Suite.Name", "room.Set/Suite.Name", "room.program" of tests/CMakeLists.txt, or "tests/cuda/area_check".
Named look_up(const std::string& name) {
  const fs::path tests = fs::path(MDI_SOURCE_DIR) / "tests";
  if (name.rfind("tests/cuda/", 0) == 0) {
    const std::string file = name.substr(6);
    return fs::exists(tests / (file + ".cu")) || fs::exists(tests / (file + ".cpp")) ? Named::kThere : Named::kMissing;
  }
  const size_t dot = name.find('.');
  if (dot == std::string::npos || !fs::is_directory(tests / name.substr(0, dot))) return Named::kNoTest;
  const std::string room = name.substr(0, dot);
  const std::string rest = name.substr(dot + 1);
  const size_t second = rest.find('.');
  if (second == std::string::npos) {
    const bool there = read(tests / "CMakeLists.txt").find("NAME " + name + " ") != std::string::npos;
    return there ? Named::kThere : Named::kMissing;
  }
  const size_t slash = rest.find('/');
  const size_t suite = slash == std::string::npos ? 0 : slash + 1;
  const std::string macro = "(" + rest.substr(suite, second - suite) + "," + rest.substr(second + 1) + "){";
  static std::map<std::string, std::string> sources;
  const auto found = sources.try_emplace(room);
  if (found.second) found.first->second = sources_of(tests / room);
  return found.first->second.find(macro) != std::string::npos ? Named::kThere : Named::kMissing;
}

TEST(Faults, EveryTestThatIsNamedExists) {
  int there = 0;
  for (const std::string& name : quoted(read(fs::path(MDI_SOURCE_DIR) / "docs/faults.md"))) {
    const Named found = look_up(name);
    EXPECT_NE(found, Named::kMissing) << name;
    there += found == Named::kThere ? 1 : 0;
  }
  EXPECT_GT(there, 100);
}

TEST(Faults, EveryLineNamesATestOrSaysWhyNot) {
  const std::string text = read(fs::path(MDI_SOURCE_DIR) / "docs/faults.md");
  int lines = 0;
  for (size_t at = text.find("\n| "); at != std::string::npos; at = text.find("\n| ", at + 1)) {
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    if (line.rfind("| fault |", 0) == 0 || line.rfind("| ---", 0) == 0) continue;
    const std::vector<std::string> names = quoted(line);
    const bool named =
        std::any_of(names.begin(), names.end(), [](const std::string& n) { return look_up(n) == Named::kThere; });
    EXPECT_TRUE(named || line.find("not applicable yet") != std::string::npos) << line;
    ++lines;
  }
  EXPECT_GT(lines, 30);
}

TEST(Faults, ANameThatIsGoneIsSeen) {
  EXPECT_EQ(look_up("layout.Faults.ANameThatIsGoneIsSeen"), Named::kThere);
  EXPECT_EQ(look_up("layout.Set/Faults.ANameThatIsGoneIsSeen"), Named::kThere);
  EXPECT_EQ(look_up("layout.Faults.ANameThatIsGone"), Named::kMissing);
  EXPECT_EQ(look_up("engine.Faults.ANameThatIsGoneIsSeen"), Named::kMissing);
  EXPECT_EQ(look_up("tests/cuda/graph_check"), Named::kThere);
  EXPECT_EQ(look_up("tests/cuda/no_check"), Named::kMissing);
  EXPECT_EQ(look_up("cli.smoke"), Named::kThere);
  EXPECT_EQ(look_up("cli.smok"), Named::kMissing);
  EXPECT_EQ(look_up("docs/gpu-report.md"), Named::kNoTest);
}

}  // namespace
