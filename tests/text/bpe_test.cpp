// Byte-pair encoding against a slow, obvious implementation, for every size at which the algorithm changes.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

namespace mdi {
namespace {

struct Model {
  std::vector<std::string> tokens;
  std::vector<Merge> merges;
  WordTable words;
  std::unique_ptr<Bpe> bpe;
};

// Random merges over the first letters of the alphabet. Tokens may be made by several merges, in any order of ranks.
std::unique_ptr<Model> random_model(std::mt19937& random, int letters, size_t merges, bool unique) {
  auto model = std::make_unique<Model>();
  for (int b = 0; b < 256; ++b) model->tokens.push_back(std::string(1, static_cast<char>(b)));
  std::vector<int32_t> usable;
  for (int i = 0; i < letters; ++i) usable.push_back('a' + i);
  std::map<std::string, int32_t> ids;
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (size_t tries = 0; model->merges.size() < merges && tries < 50 * merges; ++tries) {
    const int32_t left = usable[random() % usable.size()], right = usable[random() % usable.size()];
    const std::string joined = model->tokens[static_cast<size_t>(left)] + model->tokens[static_cast<size_t>(right)];
    if (joined.size() > 24 || (unique && ids.count(joined) != 0) || !pairs.emplace(left, right).second) continue;
    const auto [place, fresh] = ids.emplace(joined, static_cast<int32_t>(model->tokens.size()));
    if (fresh) {
      model->tokens.push_back(joined);
      usable.push_back(place->second);
    }
    model->merges.push_back({left, right, place->second});
  }
  if (!unique) {
    std::shuffle(model->merges.begin(), model->merges.end(), random);
  }
  model->words = WordTable(model->tokens.size());
  for (size_t id = 0; id < model->tokens.size(); ++id) model->words.insert(model->tokens[id], static_cast<int32_t>(id));
  model->bpe = std::make_unique<Bpe>(model->words, model->tokens.size(), model->merges, "test");
  return model;
}

// The definition: a set of (rank, position), the smallest first.
std::vector<int32_t> slow_encode(const Model& model, const std::string& text) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t r = 0; r < model.merges.size(); ++r) ranks[{model.merges[r].left, model.merges[r].right}] = r;
  std::map<size_t, int32_t> symbols;
  for (size_t i = 0; i < text.size(); ++i) symbols[i] = static_cast<unsigned char>(text[i]);
  std::set<std::pair<size_t, size_t>> open;
  const auto touch = [&](std::map<size_t, int32_t>::iterator at, bool add) {
    const auto next = std::next(at);
    if (next == symbols.end()) return;
    const auto found = ranks.find({at->second, next->second});
    if (found == ranks.end()) return;
    if (add) {
      open.insert({found->second, at->first});
    } else {
      open.erase({found->second, at->first});
    }
  };
  for (auto at = symbols.begin(); at != symbols.end(); ++at) touch(at, true);
  while (!open.empty()) {
    const auto [rank, position] = *open.begin();
    const auto at = symbols.find(position);
    const auto next = std::next(at);
    if (at != symbols.begin()) touch(std::prev(at), false);
    touch(at, false);
    touch(next, false);
    symbols.erase(next);
    at->second = model.merges[rank].joined;
    if (at != symbols.begin()) touch(std::prev(at), true);
    touch(at, true);
  }
  std::vector<int32_t> ids;
  for (const auto& [position, id] : symbols) ids.push_back(id);
  return ids;
}

TEST(Bpe, MatchesTheDefinitionAtEverySize) {
  std::mt19937 random(1);
  for (int round = 0; round < 12; ++round) {
    const int letters = 1 + round % 4;
    const auto model = random_model(random, letters, 60, round % 3 != 0);
    for (const size_t size : {1, 2, 3, 5, 17, 40, 95, 96, 97, 300, 2000, 16383, 16384, 20000}) {
      if (size > 2000 && round >= 6) continue;
      std::string text;
      for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % static_cast<unsigned>(letters));
      std::vector<int32_t> ids;
      model->bpe->encode(text, ids);
      EXPECT_EQ(ids, slow_encode(*model, text)) << "round " << round << ", size " << size;
    }
  }
}

TEST(Bpe, RemembersWhichTokensAreWholeWords) {
  // "abc" is a token, but merging "abc" stops at "a" + "bc": the second call must say the same.
  Model model;
  for (int b = 0; b < 256; ++b) model.tokens.push_back(std::string(1, static_cast<char>(b)));
  for (const char* token : {"bc", "ab", "abc"}) model.tokens.push_back(token);
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    if (id == 0) model.words = WordTable(model.tokens.size());
    model.words.insert(model.tokens[id], static_cast<int32_t>(id));
  }
  const Bpe bpe(model.words, model.tokens.size(), {{'b', 'c', 256}, {'a', 'b', 257}, {257, 'c', 258}}, "test");
  for (int i = 0; i < 3; ++i) {
    std::vector<int32_t> ids;
    bpe.encode("abc", ids);
    bpe.encode("bc", ids);
    EXPECT_EQ(ids, (std::vector<int32_t>{'a', 256, 256}));
  }
}

}  // namespace
}  // namespace mdi
