// Text to token ids and back, exactly as the reference tokenizer does it with tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mdi {

enum class Markers : uint8_t {
  kTokens,  // an added token's text becomes that token, as the reference does
  kText,    // it is encoded like any other text: for what users type
};

// Immutable: one tokenizer serves any number of threads.
class Tokenizer {
 public:
  // Throws mdi::Error naming the file and the key; see tokenizer_file.h for what is accepted.
  static Tokenizer load(const std::filesystem::path& file);
  static Tokenizer from_json(std::string_view json, std::string_view where);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids are 0 .. size() - 1, without gaps.
  int32_t size() const;

  // The ids of a text; none are added around it. Throws mdi::Error unless the text is valid UTF-8 of less than 1 GiB.
  std::vector<int32_t> encode(std::string_view text, Markers markers = Markers::kTokens) const;

  // Ill-formed UTF-8 becomes U+FFFD (see Utf8Stream). skip_special leaves out added tokens flagged special. Throws
  // mdi::Error for an id outside 0 .. size() - 1.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // What decode() appends for the id: any bytes, not always whole characters. Throws as decode() does.
  std::string_view bytes(int32_t id) const;
  // The token as tokenizer.json spells it (byte-level alphabet).
  std::string spelling(int32_t id) const;
  bool is_special(int32_t id) const;
  // The id of an added token, for example "<｜User｜>".
  std::optional<int32_t> marker(std::string_view content) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace mdi
