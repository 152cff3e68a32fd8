#include "text/tokenizer.h"

#include <unordered_map>

#include "core/error.h"
#include "core/mapped_file.h"
#include "core/printable.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/tokenizer_file.h"
#include "text/unicode.h"

namespace mdi {

namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

struct Token {
  std::string_view bytes;   // into State::bytes
  bool used = false;        // some entry of the file has this id
  bool byte_level = false;  // spelled in the byte-level alphabet
  bool special = false;
};

}  // namespace

struct Tokenizer::State {
  std::string bytes;
  std::vector<Token> tokens;
  std::unordered_map<std::string, int32_t> markers;
  MarkerTrie plain, normalized;
  std::vector<SplitRule> rules;
  WordTable words;
  std::unique_ptr<Bpe> bpe;

  const Token& token(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= tokens.size()) {
      throw Error("token",
                  "expected an id of 0 to " + std::to_string(tokens.size() - 1) + ", found " + std::to_string(id));
    }
    return tokens[static_cast<size_t>(id)];
  }

  void add_vocabulary(TokenizerFile& file, std::string_view where);
  void add_markers(const TokenizerFile& file, std::string_view where);
  void add_merges(const TokenizerFile& file, std::string_view where);

  void encode_text(std::string_view text, std::vector<int32_t>& ids) const {
    split_pieces(rules, text, [&](std::string_view piece) { bpe->encode(piece, ids); });
  }
  // The stretches between a trie's markers go to `between`.
  template <class Between>
  static void cut(const MarkerTrie& trie, std::string_view text, std::vector<int32_t>& ids, Between&& between) {
    for (size_t at = 0; at < text.size();) {
      const MarkerTrie::Match match = trie.find(text, at);
      if (match.begin > at) between(text.substr(at, match.begin - at));
      if (match.end > match.begin) ids.push_back(match.id);
      at = match.end;
    }
  }
};

void Tokenizer::State::add_vocabulary(TokenizerFile& file, std::string_view where) {
  const size_t count = file.vocabulary.size() + file.added.size();
  bytes = std::move(file.bytes);
  // Every added token appends at most its content; views are taken only once the text has stopped growing.
  size_t more = 0;
  for (const AddedToken& added : file.added) more += added.content.size();
  bytes.reserve(bytes.size() + more);
  tokens.resize(count);
  words = WordTable(file.vocabulary.size());
  for (const TokenizerFile::Entry& entry : file.vocabulary) {
    if (static_cast<size_t>(entry.id) >= count) {
      throw Error(where, "model.vocab: id " + std::to_string(entry.id) + " is beyond the number of tokens");
    }
    Token& token = tokens[static_cast<size_t>(entry.id)];
    if (token.used) throw Error(where, "model.vocab: id " + std::to_string(entry.id) + " appears twice");
    token = {std::string_view(bytes).substr(entry.begin, entry.size), true, entry.byte_level, false};
    if (entry.byte_level && !words.insert(token.bytes, entry.id)) {
      throw Error(where, "model.vocab: '" + printable(to_byte_alphabet(token.bytes), 80) + "' appears twice");
    }
  }
}

void Tokenizer::State::add_markers(const TokenizerFile& file, std::string_view where) {
  std::unordered_map<std::string_view, int32_t> own_spelling;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const Token& token = tokens[id];
    if (token.used && !token.byte_level) own_spelling.emplace(token.bytes, static_cast<int32_t>(id));
  }
  for (const AddedToken& added : file.added) {
    const auto fail = [&](const std::string& message) {
      throw Error(where, "added_tokens: '" + printable(added.content, 80) + "': " + message);
    };
    std::string decoded;
    const bool byte_level = append_from_byte_alphabet(added.content, decoded);
    int32_t known = -1;
    if (byte_level) {
      known = words.find(decoded);
    } else if (const auto found = own_spelling.find(added.content); found != own_spelling.end()) {
      known = found->second;
    }
    if (known >= 0 && known != added.id) {
      fail("expected the vocabulary's id " + std::to_string(known) + ", found " + std::to_string(added.id));
    }
    if (static_cast<size_t>(added.id) >= tokens.size()) fail("id " + std::to_string(added.id) + " leaves a gap");
    Token& token = tokens[static_cast<size_t>(added.id)];
    if (known < 0) {
      if (token.used) fail("id " + std::to_string(added.id) + " belongs to another token");
      const size_t begin = bytes.size();
      bytes += byte_level ? decoded : added.content;
      token = {std::string_view(bytes).substr(begin), true, byte_level, false};
    }
    token.special = added.special;
    if (!markers.emplace(added.content, added.id).second) fail("appears twice");
    (added.normalized ? normalized : plain).insert(added.content, added.id);
  }
  while (!tokens.empty() && !tokens.back().used) tokens.pop_back();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].used) throw Error(where, "no token has id " + std::to_string(id));
  }
}

void Tokenizer::State::add_merges(const TokenizerFile& file, std::string_view where) {
  std::vector<Merge> merges;
  merges.reserve(file.merges.size());
  for (const TokenizerFile::Pair& pair : file.merges) {
    const std::string_view both =
        std::string_view(file.merge_bytes).substr(pair.begin, pair.left_size + pair.right_size);
    const Merge merge{words.find(both.substr(0, pair.left_size)), words.find(both.substr(pair.left_size)),
                      words.find(both)};
    if (merge.left < 0 || merge.right < 0 || merge.joined < 0) {
      throw Error(where, "model.merges[" + std::to_string(merges.size()) + "]: '" +
                             printable(to_byte_alphabet(both), 80) + "' or a part of it is not in model.vocab");
    }
    merges.push_back(merge);
  }
  bpe = std::make_unique<Bpe>(words, tokens.size(), std::move(merges), where);
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return from_json(mapped.text(), file.string());
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view where) {
  TokenizerFile file = parse_tokenizer_file(json, where);
  auto state = std::make_unique<State>();
  state->rules = file.rules;
  state->add_vocabulary(file, where);
  state->add_markers(file, where);
  state->add_merges(file, where);
  return Tokenizer(std::move(state));
}

int32_t Tokenizer::size() const { return static_cast<int32_t>(state_->tokens.size()); }

std::vector<int32_t> Tokenizer::encode(std::string_view text, Markers markers) const {
  if (text.size() >= kMaxTextBytes) {
    throw Error("text", "expected less than 1 GiB, found " + std::to_string(text.size()) + " bytes");
  }
  if (const size_t good = valid_utf8_prefix(text); good != text.size()) {
    throw Error("text", "not valid UTF-8 at byte " + std::to_string(good));
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  const State& s = *state_;
  const auto plain_text = [&](std::string_view part) { s.encode_text(part, ids); };
  if (markers == Markers::kText) {
    plain_text(text);
    return ids;
  }
  // The reference matches tokens without the `normalized` flag first, and the others in what is left.
  State::cut(s.plain, text, ids, [&](std::string_view part) { State::cut(s.normalized, part, ids, plain_text); });
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  Utf8Stream stream;
  for (const int32_t id : ids) {
    const Token& token = state_->token(id);
    if (!skip_special || !token.special) stream.push(token.bytes, text);
  }
  stream.finish(text);
  return text;
}

std::string_view Tokenizer::bytes(int32_t id) const { return state_->token(id).bytes; }

std::string Tokenizer::spelling(int32_t id) const {
  const Token& token = state_->token(id);
  return token.byte_level ? to_byte_alphabet(token.bytes) : std::string(token.bytes);
}

bool Tokenizer::is_special(int32_t id) const { return state_->token(id).special; }

std::optional<int32_t> Tokenizer::marker(std::string_view content) const {
  const auto found = state_->markers.find(std::string(content));
  if (found == state_->markers.end()) return std::nullopt;
  return found->second;
}

}  // namespace mdi
