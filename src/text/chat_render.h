// A conversation to the prompt that the model was trained on (spec chat-format.md sections 1 to 5).
//
// The prompt is a list of pieces: control tokens that the format puts there, and text. Text is encoded with no marker
// recognised in it, so nothing that a user, a tool or a file says can become a control token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/chat_message.h"
#include "text/chat_replay.h"
#include "text/tokenizer.h"

namespace mdi {

struct ChatOptions {
  bool thinking = true;
  int effort = 75;            // 1 to 100, only said in thinking mode
  bool drop_thinking = true;  // forget the reasoning of answers before the last user message, unless there are tools
  // Turns that this program generated come back as the very tokens that they were; null for none.
  const ReplayMemory* memory = nullptr;
};

struct PromptPiece {
  enum class Kind : uint8_t { kText, kControl, kTokens };
  Kind kind = Kind::kText;
  std::string text;          // kText, or the control token's content such as "<｜User｜>"
  std::vector<int32_t> ids;  // kTokens
};

struct ChatPrompt {
  std::vector<PromptPiece> pieces;  // two text pieces never follow one another
  std::vector<std::string> images;  // the records of the images in order: one for each "<｜deepseek_image｜>" piece
  bool reasoning = false;           // what is generated next starts inside <think>
  TurnPlace place = kFirstPlace;    // of what is generated next, where ChatOptions::memory is given
};

// Throws mdi::Error for tool calls whose arguments are no JSON object and for options out of range.
ChatPrompt render_chat(std::span<const ChatMessage> messages, const ChatOptions& options);

struct EncodedChat {
  struct Image {
    size_t position;     // of its placeholder in `ids`
    std::string record;  // the content part as JSON
  };
  std::vector<int32_t> ids;
  std::vector<Image> images;
  bool reasoning = false;
  TurnPlace place = kFirstPlace;  // ChatPrompt::place
};

// Throws mdi::Error as render_chat does, for text that is not UTF-8, and for a control token that the tokenizer lacks.
EncodedChat encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages, const ChatOptions& options);

// The control tokens of the format.
namespace marker {
inline constexpr const char* kBos = "<｜begin▁of▁sentence｜>";
inline constexpr const char* kEos = "<｜end▁of▁sentence｜>";
inline constexpr const char* kSystem = "<｜System｜>";
inline constexpr const char* kUser = "<｜User｜>";
inline constexpr const char* kAssistant = "<｜Assistant｜>";
inline constexpr const char* kThink = "<think>";
inline constexpr const char* kThinkEnd = "</think>";
inline constexpr const char* kDsml = "｜DSML｜";
inline constexpr const char* kReminder = "<｜latest_reminder｜>";
inline constexpr const char* kImage = "<｜deepseek_image｜>";
}  // namespace marker

}  // namespace mdi
