#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace mdi {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), std::string()), stops_.end());
}

std::string StopStrings::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  // The stop that is complete first counts, wherever the text was cut.
  size_t complete = std::string::npos, begin = 0;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos || at + stop.size() >= complete) continue;
    complete = at + stop.size();
    begin = at;
    found_ = stop;
  }
  if (complete != std::string::npos) {
    stopped_ = true;
    std::string shown = held_.substr(0, begin);
    held_.clear();
    return shown;
  }
  // Keep the longest end of the text that begins a stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace mdi
