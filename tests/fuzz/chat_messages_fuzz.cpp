// Any text as a request's messages and tools: refused in one line, or a prompt.
#include <cstddef>
#include <string_view>

#include "fuzz.h"
#include "text/chat_render.h"
#include "text/unicode.h"

namespace mdi {
namespace {

void check(std::string_view text) {
  const OrderedJson request = parse_ordered_json(text, "request");
  if (!request.is_object()) return;
  const OrderedJson tools = request.value("tools", OrderedJson());
  const auto messages = parse_messages(request.value("messages", OrderedJson()), tools);
  ChatOptions options;
  options.thinking = request.value("thinking", OrderedJson()) != false;
  const ChatPrompt prompt = render_chat(messages, options);
  size_t images = 0;
  for (const PromptPiece& piece : prompt.pieces) {
    fuzz::require(valid_utf8_prefix(piece.text) == piece.text.size(), "a prompt is UTF-8");
    images += piece.kind == PromptPiece::Kind::kControl && piece.text == marker::kImage ? 1 : 0;
  }
  fuzz::require(images == prompt.images.size(), "every placeholder has its image");
}

}  // namespace
}  // namespace mdi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mdi::fuzz::allow_error([&] { mdi::check({reinterpret_cast<const char*>(data), size}); });
  return 0;
}
