// Any text as a generated answer: the same at every split, a beginning of the whole at every cut, and arguments that
// are JSON whenever nothing was wrong with the tags.
#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "../text/chat_check.h"
#include "fuzz.h"
#include "text/chat_parser.h"
#include "text/unicode.h"

namespace mdi {
namespace {

// Where the first bytes of the input say that the text is cut.
std::vector<std::string_view> pieces_of(std::string_view text, std::string_view cuts) {
  std::vector<std::string_view> pieces;
  for (const char c : cuts) {
    const size_t size = std::min<size_t>(static_cast<unsigned char>(c), text.size());
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  pieces.push_back(text);
  return pieces;
}

bool well_formed(const std::string& text) { return valid_utf8_prefix(text) == text.size(); }

void check(std::string_view input) {
  constexpr size_t kHeader = 9;
  if (input.size() < kHeader) return;
  const bool reasoning = (input[0] & 1) != 0;
  const std::string_view text = input.substr(kHeader);
  const test::Parsed whole = test::parse_text(text, reasoning, ReplyEnd::kStop);
  fuzz::require(test::events_make(whole.events, whole.reply), "the events make the reply");
  const auto pieces = pieces_of(text, input.substr(1, kHeader - 1));
  const test::Parsed split = test::parse_all(ChatTextParser(reasoning), pieces, ReplyEnd::kStop);
  fuzz::require(test::same(split.reply, whole.reply), "a split changes nothing");
  fuzz::require(test::events_make(split.events, split.reply), "the events of a split input make the reply");
  std::string_view head;
  for (const std::string_view piece : pieces) {
    head = text.substr(0, head.size() + piece.size());
    const test::Parsed cut = test::parse_text(head, reasoning, ReplyEnd::kCut);
    fuzz::require(test::begins(cut.reply, whole.reply), "a cut answer is a beginning of the whole");
    fuzz::require(test::events_make(cut.events, cut.reply), "the events of a cut input make the reply");
  }
  fuzz::require(well_formed(whole.reply.reasoning) && well_formed(whole.reply.content), "text is UTF-8");
  for (const ToolCall& call : whole.reply.tool_calls) {
    fuzz::require(well_formed(call.name) && well_formed(call.arguments), "tool calls are UTF-8");
    if (whole.reply.problem.empty()) fuzz::require(nlohmann::json::accept(call.arguments), "arguments are JSON");
  }
}

}  // namespace
}  // namespace mdi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mdi::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
