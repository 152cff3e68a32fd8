#include "text/tokenizer_file.h"

#include <array>

#include "core/error.h"
#include "core/printable.h"
#include "text/ordered_json.h"
#include "text/unicode.h"

namespace mdi {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr int kMaxDepth = 32;

// Bytes that print keep their code point; the others, in order, get the code points from 256 on.
struct ByteAlphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<int16_t, 512> to_byte{};

  ByteAlphabet() {
    to_byte.fill(-1);
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      const bool prints = (b > ' ' && b < 0x7F) || (b > 0xA0 && b != 0xAD);
      of_byte[b] = prints ? b : next++;
      to_byte[of_byte[b]] = static_cast<int16_t>(b);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet table;
  return table;
}

// Takes vocabulary and merges as they stream by and builds a tree of the rest of the file.
class FileReader : public JsonEvents {
 public:
  FileReader(std::string_view where, TokenizerFile& file) : where_(where), file_(file) {}
  OrderedJson take() { return rest_.take(); }

  void on_object() override {
    ++depth_;
    if (state_ != State::kRest) refuse("a number or a string");
    if (depth_ == 3 && in_model_ && key_ == "vocab") {
      enter(State::kVocab, seen_vocab_);
      return;
    }
    rest_.on_object();
  }
  void on_key(std::string& key) override {
    if (state_ == State::kVocab) {
      token_ = key;
      return;
    }
    if (depth_ == 1) in_model_ = key == "model";
    if (depth_ <= 2) key_ = key;
    rest_.on_key(key);
  }
  void on_object_end() override {
    --depth_;
    if (state_ == State::kVocab) {
      state_ = State::kRest;
      return;
    }
    rest_.on_object_end();
  }
  void on_array() override {
    ++depth_;
    if (state_ == State::kMerges && depth_ == 4) {
      parts_.clear();
      return;
    }
    if (state_ != State::kRest) refuse("a number or a string");
    if (depth_ == 3 && in_model_ && key_ == "merges") {
      enter(State::kMerges, seen_merges_);
      return;
    }
    rest_.on_array();
  }
  void on_array_end() override {
    --depth_;
    if (state_ != State::kMerges) return rest_.on_array_end();
    if (depth_ == 2) {
      state_ = State::kRest;
      return;
    }
    if (parts_.size() != 2) refuse("a pair of strings");
    add_merge(parts_[0], parts_[1]);
  }
  void on_string(std::string& value) override {
    if (state_ == State::kRest) return rest_.on_string(value);
    if (state_ == State::kVocab) refuse("an id");
    if (depth_ == 4) {
      if (parts_.size() == 2) refuse("a pair of strings");
      parts_.push_back(value);
      return;
    }
    const std::string_view text = value;
    const size_t space = text.find(' ');
    if (space == std::string_view::npos) refuse("two parts with a space between them");
    add_merge(text.substr(0, space), text.substr(space + 1));
  }
  void on_unsigned(uint64_t value) override {
    if (state_ == State::kRest) return rest_.on_unsigned(value);
    if (state_ == State::kMerges || value > INT32_MAX) refuse("an id below 2^31");
    const size_t begin = file_.bytes.size();
    const bool byte_level = append_from_byte_alphabet(token_, file_.bytes);
    if (!byte_level) file_.bytes += token_;
    file_.vocabulary.push_back({begin, file_.bytes.size() - begin, static_cast<int32_t>(value), byte_level});
  }
  void on_integer(int64_t value) override { only_rest("an id"), rest_.on_integer(value); }
  void on_real(double value) override { only_rest("an id"), rest_.on_real(value); }
  void on_bool(bool value) override { only_rest("an id"), rest_.on_bool(value); }
  void on_null() override { only_rest("an id"), rest_.on_null(); }

 private:
  enum class State : uint8_t { kRest, kVocab, kMerges };

  [[noreturn]] void refuse(std::string_view expected) {
    const std::string at = state_ == State::kVocab ? "model.vocab['" + printable(token_, 80) + "']"
                                                   : "model.merges[" + std::to_string(file_.merges.size()) + "]";
    throw Error(where_, at + ": expected " + std::string(expected));
  }
  void only_rest(std::string_view expected) {
    if (state_ != State::kRest) refuse(expected);
  }
  void enter(State state, bool& seen) {
    if (seen) throw Error(where_, "model." + key_ + " appears twice");
    seen = true;
    state_ = state;
    rest_.on_null();  // the key is known, its value lives elsewhere
  }
  void add_merge(std::string_view left, std::string_view right) {
    const size_t begin = file_.merge_bytes.size();
    const bool left_ok = append_from_byte_alphabet(left, file_.merge_bytes);
    const size_t middle = file_.merge_bytes.size();
    if (!left_ok || !append_from_byte_alphabet(right, file_.merge_bytes) || left.empty() || right.empty()) {
      refuse("two parts in the byte-level alphabet");
    }
    file_.merges.push_back({begin, middle - begin, file_.merge_bytes.size() - middle});
  }

  std::string_view where_;
  TokenizerFile& file_;
  OrderedJsonBuilder rest_;
  State state_ = State::kRest;
  int depth_ = 0;
  bool in_model_ = false, seen_vocab_ = false, seen_merges_ = false;
  std::string key_, token_;
  std::vector<std::string> parts_;
};

// A key of an object that may be absent; absent is null, as the file format's own defaults are.
const OrderedJson& member(const OrderedJson& object, const char* key) {
  static const OrderedJson null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

class Checks {
 public:
  explicit Checks(std::string_view where) : where_(where) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& expected, const OrderedJson& found) const {
    throw Error(where_, key + ": expected " + expected + ", found " + printable(python_json(found), 200));
  }
  // True, false or absent (then `absent`).
  bool flag(const OrderedJson& object, const std::string& path, const char* key, bool absent) const {
    const OrderedJson& value = member(object, key);
    if (value.is_null()) return absent;
    if (!value.is_boolean()) refuse(path + "." + key, "true or false", value);
    return value.get<bool>();
  }
  void expect_flag(const OrderedJson& object, const std::string& path, const char* key, bool absent, bool want) const {
    if (flag(object, path, key, absent) != want) {
      refuse(path + "." + key, want ? "true" : "false", member(object, key));
    }
  }
  void expect_unset(const OrderedJson& object, const std::string& path, const char* key) const {
    const OrderedJson& value = member(object, key);
    if (value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty())) return;
    refuse(path + "." + key, "null", value);
  }

 private:
  std::string_view where_;
};

void check_model(const OrderedJson& model, const Checks& checks) {
  if (member(model, "type") != "BPE") checks.refuse("model.type", "\"BPE\"", member(model, "type"));
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    checks.expect_unset(model, "model", key);
  }
  for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) {
    checks.expect_flag(model, "model", key, false, false);
  }
}

void check_normalizer(const OrderedJson& normalizer, const Checks& checks) {
  if (normalizer.is_null()) return;
  const OrderedJson& steps = member(normalizer, "normalizers");
  if (member(normalizer, "type") == "Sequence" && steps.is_array() && steps.empty()) return;
  checks.refuse("normalizer", "null or an empty Sequence", normalizer);
}

void check_decoder(const OrderedJson& decoder, const Checks& checks) {
  if (member(decoder, "type") != "ByteLevel") checks.refuse("decoder", "type ByteLevel", decoder);
}

// One step of the pre-tokenizer: appends its rule; true when it is the ByteLevel step that ends the list.
bool read_pre_tokenizer_step(const OrderedJson& step, const std::string& path, const Checks& checks,
                             std::vector<SplitRule>& rules) {
  if (member(step, "type") == "ByteLevel") {
    checks.expect_flag(step, path, "add_prefix_space", true, false);
    if (checks.flag(step, path, "use_regex", true)) rules.push_back(SplitRule::kGpt2);
    return true;
  }
  if (member(step, "type") != "Split") checks.refuse(path, "type Split or ByteLevel", step);
  if (member(step, "behavior") != "Isolated") {
    checks.refuse(path + ".behavior", "\"Isolated\"", member(step, "behavior"));
  }
  checks.expect_flag(step, path, "invert", false, false);
  const OrderedJson& regex = member(member(step, "pattern"), "Regex");
  for (const SplitRule rule : {SplitRule::kDigits, SplitRule::kCjk, SplitRule::kWords}) {
    if (regex == split_pattern(rule)) {
      rules.push_back(rule);
      return false;
    }
  }
  checks.refuse(path + ".pattern", "one of the three regular expressions of this model family",
                member(step, "pattern"));
}

std::vector<SplitRule> read_pre_tokenizer(const OrderedJson& value, const Checks& checks) {
  std::vector<SplitRule> rules;
  if (member(value, "type") != "Sequence") {
    if (!read_pre_tokenizer_step(value, "pre_tokenizer", checks, rules)) {
      checks.refuse("pre_tokenizer", "a ByteLevel step at the end", value);
    }
    return rules;
  }
  const OrderedJson& steps = member(value, "pretokenizers");
  if (!steps.is_array() || steps.empty() || steps.size() > 8) {
    checks.refuse("pre_tokenizer.pretokenizers", "one to eight steps", steps);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string path = "pre_tokenizer.pretokenizers[" + std::to_string(i) + "]";
    const bool last = read_pre_tokenizer_step(steps[i], path, checks, rules);
    if (last != (i + 1 == steps.size())) {
      checks.refuse(path, last ? "nothing behind a ByteLevel step" : "a ByteLevel step at the end", steps[i]);
    }
  }
  return rules;
}

std::vector<AddedToken> read_added_tokens(const OrderedJson& value, const Checks& checks) {
  std::vector<AddedToken> added;
  if (value.is_null()) return added;
  if (!value.is_array()) checks.refuse("added_tokens", "a list", value);
  for (size_t i = 0; i < value.size(); ++i) {
    const OrderedJson& entry = value[i];
    const std::string path = "added_tokens[" + std::to_string(i) + "]";
    const OrderedJson& id = member(entry, "id");
    const OrderedJson& content = member(entry, "content");
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) checks.refuse(path + ".id", "an id below 2^31", id);
    if (!content.is_string() || content.get_ref<const std::string&>().empty()) {
      checks.refuse(path + ".content", "a string that is not empty", content);
    }
    for (const char* key : {"lstrip", "rstrip", "single_word"}) checks.expect_flag(entry, path, key, false, false);
    added.push_back({content.get<std::string>(), id.get<int32_t>(), checks.flag(entry, path, "special", false),
                     checks.flag(entry, path, "normalized", false)});
  }
  return added;
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view where) {
  TokenizerFile file;
  FileReader reader(where, file);
  read_json(json, where, {kMaxFileBytes, kMaxDepth}, reader);
  const OrderedJson rest = reader.take();
  const Checks checks(where);
  if (!rest.is_object()) throw Error(where, "expected a tokenizer.json object");
  check_model(member(rest, "model"), checks);
  if (file.vocabulary.empty()) throw Error(where, "model.vocab: expected at least the 256 bytes, found nothing");
  checks.expect_unset(rest, "file", "truncation");
  checks.expect_unset(rest, "file", "padding");
  check_normalizer(member(rest, "normalizer"), checks);
  check_decoder(member(rest, "decoder"), checks);
  file.rules = read_pre_tokenizer(member(rest, "pre_tokenizer"), checks);
  file.added = read_added_tokens(member(rest, "added_tokens"), checks);
  return file;
}

bool append_from_byte_alphabet(std::string_view text, std::string& bytes) {
  const size_t before = bytes.size();
  for (size_t at = 0; at < text.size();) {
    const Decoded c = decode_utf8(text, at);
    const int16_t byte = c.cp < 512 ? alphabet().to_byte[c.cp] : int16_t{-1};
    if (byte < 0) {
      bytes.resize(before);
      return false;
    }
    bytes.push_back(static_cast<char>(byte));
    at += c.size;
  }
  return true;
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) append_utf8(alphabet().of_byte[static_cast<unsigned char>(c)], text);
  return text;
}

}  // namespace mdi
