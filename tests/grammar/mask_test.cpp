// Patterns and choices; and the mask as a function: of the generated tokens alone, across the end of reasoning.
#include <gtest/gtest.h>
#include <regex.h>

#include <thread>

#include "core/error.h"
#include "walk.h"

namespace mdi {
namespace {

GrammarSpec pattern_spec(const std::string& pattern) {
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kRegex;
  spec.pattern = pattern;
  return spec;
}

GrammarSpec object_spec() {
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kJsonObject;
  return spec;
}

TEST(GrammarMask, PatternsMatchAsAWhole) {
  struct Case {
    const char* pattern;
    std::vector<const char*> matches, others;
  };
  const Case cases[] = {
      {"(foo|ba[rz]+)-\\d{2,3}", {"foo-12", "barzz-123"}, {"foo-1", "xfoo-12", "foo-1234"}},
      {"^a*$", {"", "aaaa"}, {"b", "ab"}},
      {"a|b|", {"a", "b", ""}, {"ab"}},
      {"(?:a(?<n>b)?)+?c{0}", {"a", "abaab"}, {"", "b", "ac"}},
      {"[^a-y\\s]{3}", {"zzz", "z1é", "漢字z"}, {"zza", "z z"}},
      {".*\\.\\x41\\u{1F600}\\u0042", {".A😀B", "x.A😀B"}, {"A😀B", "\n.A😀B"}},
      {"(a*)*b", {"b", "aab"}, {"a", ""}},
      {"((a?){3}){2}", {"", "aaaaaa"}, {"aaaaaaa"}},
      {"\\w+@\\w+\\.(com|org)", {"a_1@b.com"}, {"a@b.net", "@b.com"}},
  };
  for (const Case& c : cases) {
    Mask mask(pattern_spec(c.pattern));
    for (const char* text : c.matches) EXPECT_TRUE(allows(mask, text)) << c.pattern << " " << text;
    for (const char* text : c.others) EXPECT_FALSE(allows(mask, text)) << c.pattern << " " << text;
  }
}

// The C library's matcher agrees with what is drawn.
TEST(GrammarMask, RandomMatchesMatch) {
  std::mt19937_64 random(3);
  for (const char* pattern : {"(foo|ba[rz]+)-[0-9]{2,3}", "[a-f]{2,9}(,[a-f]{2,9}){0,3}", "(a|bc)*d?e+"}) {
    regex_t compiled;
    ASSERT_EQ(regcomp(&compiled, ("^(" + std::string(pattern) + ")$").c_str(), REG_EXTENDED | REG_NOSUB), 0);
    Mask mask(pattern_spec(pattern));
    for (int i = 0; i < 15; ++i) {
      const auto generated = walk(mask, random, 200);
      ASSERT_TRUE(generated);
      const std::string text = parse_answer(*generated).content;
      EXPECT_EQ(regexec(&compiled, text.c_str(), 0, nullptr, 0), 0) << pattern << " " << text;
    }
    regfree(&compiled);
  }
}

TEST(GrammarMask, ChoicesAreTheAnswer) {
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kChoice;
  spec.choices = {"yes", "yes, \"surely\"", "ヌ", "\n"};
  Mask mask(spec);
  for (const std::string& choice : spec.choices) EXPECT_TRUE(allows(mask, choice)) << choice;
  for (const char* other : {"", "no", "yes,", "yesyes"}) EXPECT_FALSE(allows(mask, other)) << other;
}

TEST(GrammarMask, PatternErrorsSayWhere) {
  for (const auto& [pattern, expected] : std::vector<std::pair<std::string, std::string>>{
           {"a(b", "at character 3 of the pattern: a '(' without its ')'"},
           {"a)", "at character 1 of the pattern: a ')' without its '('"},
           {"*a", "at character 0 of the pattern: a quantifier with nothing to repeat"},
           {"a{2,1}", "a count whose upper end is below its lower end"},
           {"a**", "a quantifier behind a quantifier"},
           {"[b-a]", "a range whose end is below its beginning"},
           {"[a", "ends where ']' was expected"},
           {"a\\", "ends where an escape was expected"},
           {"\\p{L}", "the escape \\p is not supported"},
           {"a^b", "an anchor inside of the pattern is not supported"},
           {"\\uD800", "a surrogate"},
           {"[]", "nothing can satisfy it"},
           {"\xFF", "is not UTF-8"}}) {
    try {
      full_compiler().compile(pattern_spec(pattern));
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << pattern << ": " << error.what();
    }
  }
}

// Reasoning is free up to </think>; it may not end the answer while something is asked for behind it.
TEST(GrammarMask, NothingIsAskedOfReasoning) {
  const int32_t think_end = full_tokenizer().marker(marker::kThinkEnd).value();
  const std::vector<int32_t> thoughts = full_tokenizer().encode("{ not JSON, and <｜DSML｜ too");
  Mask mask(object_spec(), true);
  for (size_t n = 0; n <= thoughts.size(); ++n) {
    const std::vector<int32_t> generated(thoughts.begin(), thoughts.begin() + static_cast<std::ptrdiff_t>(n));
    const std::vector<int32_t> allowed = mask.allowed(generated);
    EXPECT_EQ(allowed.size(), static_cast<size_t>(full_tokenizer().size()) - 1);
    EXPECT_FALSE(bit(mask.bits, eos_token()));
    EXPECT_TRUE(bit(mask.bits, think_end));
  }
  std::vector<int32_t> generated = thoughts;
  generated.push_back(think_end);
  Mask direct(object_spec());
  EXPECT_EQ(mask.allowed(generated), direct.allowed({}));
  EXPECT_FALSE(bit(mask.bits, think_end));

  GrammarSpec free_text;
  free_text.tool_choice = GrammarSpec::ToolChoice::kNone;
  Mask none(free_text, true);
  EXPECT_FALSE(none(thoughts));  // an empty answer is one, so nothing at all is asked
  EXPECT_TRUE(none(generated));
}

TEST(GrammarMask, OnlyTheEndFollowsACompleteAnswer) {
  Mask mask(object_spec());
  EXPECT_EQ(mask.allowed(full_tokenizer().encode("{}")), std::vector<int32_t>{eos_token()});
}

// No control token is ever part of a text, nor is an id beyond the tokenizer's.
TEST(GrammarMask, ControlTokensAreNoText) {
  GrammarSpec spec;
  spec.tool_choice = GrammarSpec::ToolChoice::kNone;
  Mask mask(spec);
  mask(full_tokenizer().encode("text"));
  size_t text = 0;
  for (int64_t id = 0; id < padded_vocab(); ++id) {
    const bool control =
        id < full_tokenizer().size() && full_tokenizer().marker(full_tokenizer().bytes(static_cast<int32_t>(id))) == id;
    if (control || id >= full_tokenizer().size()) {
      EXPECT_EQ(bit(mask.bits, id), id == eos_token()) << id;
    }
    text += bit(mask.bits, id) ? 1 : 0;
  }
  EXPECT_GT(text, 100'000u);
}

// Asked in any order, as drafts and several samples do, the answer is that of a mask that was never asked before.
TEST(GrammarMask, IsAFunctionOfTheTokens) {
  std::mt19937_64 random(11);
  Mask mask(object_spec());
  std::vector<std::vector<int32_t>> samples;
  for (int i = 0; i < 4; ++i) {
    Mask fresh(object_spec());
    samples.push_back(walk(fresh, random, 120).value_or(full_tokenizer().encode("{\"a\": [1")));
  }
  for (int i = 0; i < 400; ++i) {
    const std::vector<int32_t>& sample = samples[random() % samples.size()];
    std::vector<int32_t> prefix(sample.begin(), sample.begin() + static_cast<std::ptrdiff_t>(random() % sample.size()));
    if (random() % 4 == 0) prefix.push_back(static_cast<int32_t>(random() % 129'000));  // a draft that is refused
    mask(prefix);
    Mask fresh(object_spec());
    fresh(prefix);
    ASSERT_EQ(mask.bits, fresh.bits) << i;
  }
}

TEST(GrammarMask, RequestsShareAGrammarOnSeveralThreads) {
  std::vector<std::thread> threads;
  std::vector<size_t> done(4);
  for (size_t t = 0; t < done.size(); ++t) {
    threads.emplace_back([t, &done] {
      std::mt19937_64 random(t);
      Mask mask(object_spec());
      for (int i = 0; i < 5; ++i) done[t] += walk(mask, random, 80) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const size_t count : done) EXPECT_GT(count, 0u);
}

}  // namespace
}  // namespace mdi
