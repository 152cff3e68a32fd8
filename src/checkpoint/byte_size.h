// Amounts of memory as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mdi {

// "141GB", "80GiB", "1.5 TB", "512M", "4096": decimal units are powers of 1,000, those with an i powers of 1,024, a
// bare number is bytes; upper or lower case. Throws mdi::Error naming `where` for anything else, and beyond 2^62.
uint64_t parse_size(std::string_view text, std::string_view where);

// "85.53 GB", "2.91 MB", "890 B": decimal units, as memory plans and data sheets use.
std::string size_text(uint64_t bytes);

// "510,286,023,000"
std::string with_commas(uint64_t value);

}  // namespace mdi
