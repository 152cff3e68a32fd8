// The tokenizer against the reference's answers.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <set>

#include "support.h"
#include "text/detokenizer.h"

namespace mdi {
namespace {

using test::v41_tokenizer;

void expect_cases(const Tokenizer& tokenizer, const std::string& file, size_t count) {
  const auto cases = test::read_lines(file);
  EXPECT_EQ(cases.size(), count);
  for (const auto& c : cases) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(text), ids) << c;
    EXPECT_EQ(tokenizer.decode(ids), c["decoded"].get<std::string>()) << c;
  }
}

TEST(Tokenizer, MatchesTheReferenceOnPlainText) { expect_cases(test::v3_tokenizer(), "cases.jsonl", 300); }

TEST(Tokenizer, MatchesTheReferenceOnMarkersAndEdges) {
  expect_cases(v41_tokenizer(), "cases_v41.jsonl", 81);
  expect_cases(v41_tokenizer(), "cases_edges.jsonl", 29);
  EXPECT_EQ(v41_tokenizer().size(), 129280);
}

// decode() and every way to stream the same ids give the reference's text; what a stream shows is always whole.
TEST(Tokenizer, DecodesAndStreamsPartialCharacters) {
  const Tokenizer& tokenizer = v41_tokenizer();
  const auto cases = test::read_lines("decode_v41.jsonl");
  EXPECT_EQ(cases.size(), 230u);
  for (const auto& c : cases) {
    const auto ids = c["ids"].get<std::vector<int32_t>>();
    const bool skip = c["skip_special_tokens"].get<bool>();
    EXPECT_EQ(tokenizer.decode(ids, skip), c["decoded"].get<std::string>()) << c;
    Detokenizer stream(tokenizer, skip);
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_EQ(valid_utf8_prefix(part), part.size()) << c;
      text += part;
    }
    text += stream.finish();
    EXPECT_EQ(text, c["decoded"].get<std::string>()) << c;
  }
}

TEST(Tokenizer, MarkersInTextModeAreOrdinaryTokens) {
  const Tokenizer& tokenizer = v41_tokenizer();
  for (const auto& c : test::read_lines("cases_v41.jsonl")) {
    const auto text = c["text"].get<std::string>();
    const auto ids = tokenizer.encode(text, Markers::kText);
    EXPECT_EQ(tokenizer.decode(ids), text);
    for (const int32_t id : ids) EXPECT_TRUE(id > 2 && id < 128000) << text;
  }
  EXPECT_EQ(tokenizer.marker("<｜User｜>"), 128803);
  EXPECT_EQ(tokenizer.marker("hello"), std::nullopt);
}

TEST(Tokenizer, EveryTokenDecodesToTextThatIsItself) {
  const Tokenizer& tokenizer = v41_tokenizer();
  for (int32_t id = 0; id < tokenizer.size(); id += 7) {
    const std::string text = tokenizer.decode({&id, 1});
    if (text.find("\xEF\xBF\xBD") != std::string::npos) continue;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, RefusesWhatIsNoTextAndNoToken) {
  const Tokenizer tokenizer = Tokenizer::from_json(test::small_file({"h e"}).dump(), "small");
  for (const char* bad : {"\x80", "a\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "ab\xFF"}) {
    EXPECT_THROW(tokenizer.encode(bad), Error);
  }
  const std::vector<int32_t> ids = {0, -1};
  EXPECT_THROW(tokenizer.decode(ids), Error);
  EXPECT_THROW(tokenizer.bytes(tokenizer.size()), Error);
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, ReadsSmallByteLevelFiles) {
  auto file = test::small_file({"h e", "l l", "he ll", "hell o", "Ġ t"});
  const auto check = [](const Tokenizer& tokenizer) {
    EXPECT_EQ(tokenizer.encode("hello the<end>"), (std::vector<int32_t>{259, 260, 256, 261}));
    EXPECT_EQ(tokenizer.spelling(260), "Ġt");
    EXPECT_EQ(tokenizer.bytes(260), " t");
    EXPECT_TRUE(tokenizer.is_special(261));
  };
  check(Tokenizer::from_json(file.dump(), "small"));
  // Newer files hold the merges as pairs.
  auto& merges = file["model"]["merges"];
  for (auto& merge : merges) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    merge = {text.substr(0, space), text.substr(space + 1)};
  }
  check(Tokenizer::from_json(file.dump(), "small"));
}

struct BadFile {
  const char* pointer;  // what to change
  nlohmann::ordered_json value;
  const char* named;  // the message names this
};

TEST(Tokenizer, RefusesFilesThatItDoesNotImplement) {
  const auto good = test::small_file({"h e"});
  const BadFile bad[] = {
      {"/model/type", "Unigram", "model.type"},
      {"/model/dropout", 0.1, "model.dropout"},
      {"/model/unk_token", "<unk>", "model.unk_token"},
      {"/model/byte_fallback", true, "model.byte_fallback"},
      {"/model/ignore_merges", true, "model.ignore_merges"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/model/vocab/he", -1, "model.vocab['he']"},
      {"/model/vocab/he", 0, "id 0"},
      {"/model/vocab/he", 2000000000, "id 2000000000"},
      {"/model/vocab/he", nlohmann::ordered_json::array(), "model.vocab['he']"},
      {"/model/vocab/he", nlohmann::ordered_json::object(), "model.vocab['he']"},
      {"/model/vocab", nullptr, "model.vocab"},
      {"/model/merges/0", "he", "model.merges[0]"},
      {"/model/merges/0", "x y", "model.merges[0]"},
      {"/model/merges/0", "h e x", "model.merges[0]"},
      {"/model/merges/0", {"h", "e", "x"}, "model.merges[0]"},
      {"/model/merges/0", 7, "model.merges[0]"},
      {"/model/merges", {"h e", "h e"}, "merge 1"},
      {"/normalizer", {{"type", "NFC"}}, "normalizer"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer/add_prefix_space", true, "pre_tokenizer.add_prefix_space"},
      {"/pre_tokenizer/type", "Whitespace", "pre_tokenizer"},
      {"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", nlohmann::ordered_json::array()}}, "pre_tokenizer"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}, {"pattern", {{"Regex", "\\p{N}+"}}}},
       "pattern"},
      {"/pre_tokenizer", {{"type", "Split"}, {"behavior", "Removed"}}, "behavior"},
      {"/decoder", nullptr, "decoder"},
      {"/truncation", {{"max_length", 4}}, "truncation"},
      {"/added_tokens/0/lstrip", true, "lstrip"},
      {"/added_tokens/0/content", "", "content"},
      {"/added_tokens/0/content", "he", "'he'"},
      {"/added_tokens/0/id", 500, "'<end>'"},
      {"/added_tokens/0/id", 3, "'<end>'"},
      {"/added_tokens/0/id", "x", "id"},
      {"/added_tokens", 3, "added_tokens"},
  };
  for (const BadFile& b : bad) {
    auto file = good;
    file[nlohmann::ordered_json::json_pointer(b.pointer)] = b.value;
    try {
      Tokenizer::from_json(file.dump(), "small.json");
      ADD_FAILURE() << b.pointer << " = " << b.value << " was accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(b.named), std::string::npos) << b.pointer << ": " << e.what();
      EXPECT_EQ(std::string(e.what()).rfind("small.json: ", 0), 0u) << e.what();
    }
  }
  for (const char* text :
       {"", "[]", "3", "{}", "{\"model\":{\"vocab\":{}", "{\"model\":{\"vocab\":{},\"vocab\":{}}}"}) {
    EXPECT_THROW(Tokenizer::from_json(text, "small.json"), Error) << text;
  }
  auto no_byte = good;
  no_byte["model"]["vocab"].erase("a");
  EXPECT_THROW(Tokenizer::from_json(no_byte.dump(), "small.json"), Error);
}

}  // namespace
}  // namespace mdi
