#include "text/engram_map.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <string>
#include <unordered_map>

#include "core/error.h"
#include "text/unicode.h"

namespace mdi {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_folded_space(char32_t c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

class Folder {
 public:
  Folder() {
    UErrorCode status = U_ZERO_ERROR;
    nfkc_ = icu::Normalizer2::getNFKCInstance(status);
    nfd_ = icu::Normalizer2::getNFDInstance(status);
    check(status);
  }

  // NFKC, NFD, no marks, lower case, runs of folded spaces as one space, no white space at the ends unless the whole is
  // one space. The mark class is the reference's, not the library's: the two know different Unicode versions.
  std::string fold(std::string_view text) const {
    UErrorCode status = U_ZERO_ERROR;
    const icu::UnicodeString in =
        icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
    const icu::UnicodeString decomposed = nfd_->normalize(nfkc_->normalize(in, status), status);
    check(status);
    std::u32string folded;
    for (int32_t at = 0; at < decomposed.length(); at = decomposed.moveIndex32(at, 1)) {
      const auto c = static_cast<char32_t>(decomposed.char32At(at));
      if ((classes_[c] & kMark) != 0) continue;
      const auto lower = static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
      if (!is_folded_space(lower)) {
        folded.push_back(lower);
      } else if (folded.empty() || folded.back() != ' ') {
        folded.push_back(' ');
      }
    }
    return folded == U" " ? " " : strip(folded);
  }

 private:
  static void check(UErrorCode status) {
    if (U_FAILURE(status)) throw Error("Unicode normalisation", u_errorName(status));
  }
  static std::string strip(std::u32string_view text) {
    const auto is_space = [](char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0; };
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    std::string out;
    for (const char32_t c : text) append_utf8(c, out);
    return out;
  }

  const icu::Normalizer2* nfkc_ = nullptr;
  const icu::Normalizer2* nfd_ = nullptr;
  const uint8_t* classes_ = char_class_table();
};

}  // namespace

EngramMap engram_token_map(const Tokenizer& tokenizer) {
  const Folder folder;
  EngramMap map;
  map.ids.reserve(static_cast<size_t>(tokenizer.size()));
  std::unordered_map<std::string, int32_t> seen;
  seen.reserve(static_cast<size_t>(tokenizer.size()));
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string text = tokenizer.decode({&id, 1});
    std::string key;
    if (text.find(kReplacement) != std::string::npos) {
      key = tokenizer.spelling(id);
    } else {
      key = folder.fold(text);
      if (key.empty()) key = text;
    }
    map.ids.push_back(seen.emplace(std::move(key), static_cast<int32_t>(seen.size())).first->second);
  }
  map.count = static_cast<int32_t>(seen.size());
  return map;
}

}  // namespace mdi
