// The messages of a request, with all that OpenAI's form has and the format does not: refused by name, or put into the
// format's own words.
#pragma once

#include <vector>

#include "server/fields.h"
#include "text/chat_message.h"

namespace mdi {

// messages: a list; tools: that of the request, or null. The role developer is the role system. The last message is one
// to answer: of a user, tool or system, or an assistant's with "prefix": true, which is then continued. A tool's
// message answers a call of an earlier message. Throws ApiError with the path of the member at fault, also for one that
// is not known.
std::vector<ChatMessage> read_messages(const OrderedJson& messages, const OrderedJson& tools);

}  // namespace mdi
