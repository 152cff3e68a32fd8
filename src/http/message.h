// The text of an answer's head.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "http/server.h"

namespace mdi {

enum class Framing : uint8_t {
  kLength,      // content-length
  kChunked,     // HTTP/1.1 streams
  kUntilClose,  // HTTP/1.0 streams
};

// Status line and headers with the empty line. length: of the body, for kLength. close: says "connection: close". What
// could end a line in a header's name or value is replaced by a space.
std::string answer_head(int status, std::string_view content_type, const Headers& extra, Framing framing, size_t length,
                        bool close);

// `text` as one chunk. Not for empty text, which would end the stream.
void append_chunk(std::string_view text, std::string& out);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace mdi
