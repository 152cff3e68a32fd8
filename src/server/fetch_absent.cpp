// A build without libcurl: nothing is fetched.
#include "core/error.h"
#include "server/fetch.h"

namespace mdi {

bool can_fetch() { return false; }

std::vector<std::byte> fetch(const std::string& /*url*/, const std::string& where, const FetchRules& /*rules*/) {
  throw Error(where, "this build of the server cannot fetch images; send it as a data: URL or base64");
}

}  // namespace mdi
