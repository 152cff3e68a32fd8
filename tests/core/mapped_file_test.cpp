#include "core/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "core/error.h"
#include "core/printable.h"

namespace mdi {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  std::filesystem::path dir_ =
      std::filesystem::path(testing::TempDir()) / ("mdi_mapped_file_" + std::to_string(::getpid()));
  void SetUp() override { std::filesystem::create_directories(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path write(const char* name, std::string_view text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
    return dir_ / name;
  }
  static std::string error_of(const std::filesystem::path& path) {
    try {
      MappedFile file(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(MappedFileTest, ShowsTheBytes) {
  MappedFile file(write("a", "hello"));
  EXPECT_EQ(file.text(), "hello");
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.text(), "hello");
  EXPECT_EQ(moved.path(), dir_ / "a");
  file = MappedFile(write("b", "other"));
  EXPECT_EQ(file.text(), "other");
  file = std::move(moved);
  EXPECT_EQ(file.text(), "hello");
}

TEST_F(MappedFileTest, AnEmptyFileIsLegal) {
  const MappedFile file(write("empty", ""));
  EXPECT_EQ(file.size(), 0u);
  EXPECT_EQ(file.data(), nullptr);
  EXPECT_EQ(file.text(), "");
}

TEST_F(MappedFileTest, RefusesWhatIsNotAFile) {
  EXPECT_NE(error_of(dir_ / "absent").find("absent: cannot open the file: No such file"), std::string::npos);
  EXPECT_NE(error_of(dir_).find("expected a file, found a folder"), std::string::npos);
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error_of(dir_ / "pipe").find("expected a regular file"), std::string::npos);
}

TEST(Printable, KeepsCharactersAndReplacesTheRest) {
  EXPECT_EQ(printable("layers.0 \xE6\xA8\xA1\xE5\x9E\x8B"), "layers.0 \xE6\xA8\xA1\xE5\x9E\x8B");
  EXPECT_EQ(printable("a\nb\x7F\xFF\xC0\x80\xED\xA0\x80\xE6"), "a?b????????");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "?");
}

}  // namespace
}  // namespace mdi
