#include "server/answerable.h"

#include "server/api_error.h"

namespace mdi {

void check_answerable(const std::vector<ChatMessage>& messages) {
  size_t end = messages.size();
  const bool continued = end > 0 && messages[end - 1].role == Role::kAssistant;
  if (continued) --end;
  while (end > 0 && messages[end - 1].role == Role::kReminder) --end;  // stand between a message and its answer
  if (end > 0) {
    const ChatMessage& last = messages[end - 1];
    const bool prompt = last.role == Role::kSystem && end == 1 && last.task.empty();
    if (last.role != Role::kAssistant && !prompt) return;
  }
  throw ApiError(ApiErrorKind::kInvalid,
                 continued
                     ? "messages: expected a message to answer before the assistant's that is continued, found none"
                     : "messages: expected a message to answer, found a system prompt or reminders alone",
                 "messages", "invalid_value");
}

}  // namespace mdi
