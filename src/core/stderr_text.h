// Standard error, whose reader may have stopped reading: whoever ends must not wait for it for ever.
#pragma once

#include <functional>
#include <string_view>

namespace mdi {

// Writes `text` to standard error as its reader takes it; ten times a second, while it takes nothing, `give_up` is
// asked whether the rest is lost. False: something was lost, also where there is no standard error.
bool write_stderr(std::string_view text, const std::function<bool()>& give_up);

}  // namespace mdi
