// Anthropic's messages and system prompt to the conversation that the model's format knows.
//
// - Messages of one role in a row are one message. Text blocks of an assistant's message are joined as they are, its
//   thinking blocks too: that is what was generated before it was cut into blocks.
// - A tool_result becomes a tool message; with is_error its content begins with "Error: ", because the format has no
//   place to say it.
// - redacted_thinking has no text that the model could be shown: it is taken and left out.
// - A last message of the assistant is continued.
#pragma once

#include <string>
#include <vector>

#include "server/anthropic/signature.h"
#include "server/images.h"
#include "text/chat_message.h"
#include "text/ordered_json.h"

namespace mdi {

struct Conversation {
  std::vector<ChatMessage> messages;
  int edited_thinking = 0;  // thinking blocks whose signature is not this server's for this text
};

// `system`: a string, a list of text blocks, or null for none. Throws ApiError with the path of what is at fault.
Conversation read_blocks(const OrderedJson* system, const OrderedJson& messages, ImageReader& images,
                         const ThinkingSigner& signer);

}  // namespace mdi
