#include "text/unicode.h"

#include <gtest/gtest.h>

#include <random>

#include "support.h"

namespace mdi {
namespace {

TEST(Unicode, TableEqualsTheReferenceClasses) {
  const auto classes = nlohmann::json::parse(test::read_file(test::data_path("char_classes.json")));
  const std::pair<const char*, CharClass> names[] = {{"L", kLetter}, {"M", kMark},   {"N", kNumber},
                                                     {"P", kPunct},  {"S", kSymbol}, {"space", kSpace}};
  std::vector<uint8_t> expected(kCodePoints, 0);
  for (const auto& [name, bit] : names) {
    for (const auto& range : classes[name]) {
      for (auto c = range[0].get<uint32_t>(); c <= range[1].get<uint32_t>(); ++c) expected[c] |= bit;
    }
  }
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), char_class_table()));
}

TEST(Unicode, EveryCodePointGoesThroughUtf8) {
  for (char32_t c = 0; c < kCodePoints; c += c < 0x3000 ? 1 : 13) {
    std::string text;
    append_utf8(c, text);
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    EXPECT_EQ(valid_utf8_prefix(text), surrogate ? 0 : text.size());
    EXPECT_EQ(decode_utf8(text, 0).cp, c);
    EXPECT_EQ(decode_utf8(text, 0).size, text.size());
  }
}

std::string stream(std::string_view bytes, std::mt19937* random) {
  Utf8Stream utf8;
  std::string text;
  while (!bytes.empty()) {
    const size_t size = random == nullptr ? bytes.size() : std::min<size_t>(bytes.size(), (*random)() % 4);
    utf8.push(bytes.substr(0, size), text);
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
    bytes.remove_prefix(size);
  }
  utf8.finish(text);
  return text;
}

TEST(Unicode, IllFormedPartsAreReplacedOneByOne) {
  const std::string r = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {
      {"a\xC3", "a" + r},
      {"\xF0\x9F\x98", r},
      {"\xF0\x9F\x98z", r + "z"},
      {"\x80\x80", r + r},
      {"\xC0\xAF", r + r},
      {"\xE0\x80\x80", r + r + r},
      {"\xED\xA0\x80", r + r + r},
      {"\xF4\x91\x92\x93\xFF"
       "A\x80"
       "B",
       r + r + r + r + r + "A" + r + "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
       "A",
       r + r + r + r + "A"},  // the Unicode Standard's own example
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(stream(bytes, nullptr), text);
}

TEST(Unicode, AStreamDoesNotDependOnItsPieces) {
  std::mt19937 random(7);
  const char alphabet[] = "a\x80\x9F\xA0\xBF\xC3\xE0\xE4\xED\xEF\xF0\xF4\xFF";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (auto n = random() % 12; n > 0; --n) bytes += alphabet[random() % (sizeof alphabet - 1)];
    EXPECT_EQ(stream(bytes, &random), stream(bytes, nullptr));
  }
}

}  // namespace
}  // namespace mdi
