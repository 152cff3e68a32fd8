// Text of unknown origin (file contents, names, requests), made fit to stand in a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace mdi {

// `text` with control characters and bytes that are not UTF-8 replaced by '?', cut after about `limit` bytes with "..."
// behind.
std::string printable(std::string_view text, size_t limit = 160);

}  // namespace mdi
