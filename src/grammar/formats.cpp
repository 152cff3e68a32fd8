#include "grammar/formats.h"

#include <utility>

namespace mdi {
namespace {

#define YEAR "[1-9][0-9]{3}"
#define LEAP "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
  "(?:" YEAR                                                                                       \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:" \
  "0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME CLOCK ":[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-]" CLOCK ")"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 BYTE "(?:\\." BYTE "){3}"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL "){0,3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define CLOCKS "(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
#define DAYS "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
#define PATH "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"

constexpr std::pair<std::string_view, const char*> kFormats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", "P(?:" DAYS "(?:T" CLOCKS ")?|T" CLOCKS "|[0-9]+W)"},
    {"email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,16}){0,2}@" LABEL "(?:\\." LABEL "){1,3}"},
    {"hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6", "(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,6}:" H16 "|::(?:" H16 ":){0,5}" H16 "|(?:" H16 ":){1,6}:|::"},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*://" HOST "(?::[1-9][0-9]{0,3})?(?:/" PATH ")?(?:\\?" PATH ")?(?:#" PATH ")?"},
};

}  // namespace

const char* format_pattern(std::string_view format) {
  for (const auto& [name, pattern] : kFormats) {
    if (name == format) return pattern;
  }
  return nullptr;
}

}  // namespace mdi
