// Whether a conversation ends with something to answer.
#pragma once

#include <vector>

#include "text/chat_message.h"

namespace mdi {

// Throws ApiError (messages) for a conversation whose prompt the format would not end with the beginning of an answer,
// or, where the last message is the assistant's and is continued, would not have one before it: a system prompt alone,
// reminders alone, an assistant's message that nothing comes before (spec chat-format.md section 2). The model would go
// on with the markup itself.
void check_answerable(const std::vector<ChatMessage>& messages);

}  // namespace mdi
