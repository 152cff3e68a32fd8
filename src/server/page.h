// The page at "/": a chat for people, of the files in src/server/page as they were when this program was built. It
// talks to the same endpoints as any client, and to no other host.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "server/route.h"

namespace mdi {

// One file, in the program itself.
struct PageAsset {
  std::string_view name;  // "index.html"
  std::string_view type;  // "text/html; charset=utf-8"
  std::string_view tag;   // the ETag, quotes included: the content's hash
  std::string_view text;
};

// Made by cmake/page.cmake.
std::span<const PageAsset> page_assets();

// GET "/" (index.html) and "/page/NAME". Open: a browser asks for them before a person can enter a key. Browsers ask
// each time whether a file is still the same and get 304 (If-None-Match).
std::vector<Route> page_routes();

}  // namespace mdi
