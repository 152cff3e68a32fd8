// Ends a generated text at the first of some strings, without ever showing part of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mdi {

class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(std::vector<std::string> stops);

  // The text that is safe to show: all but what may yet become a stop string. After a stop nothing more is.
  std::string push(std::string_view text);
  // What was held back, when the generation ends without a stop.
  std::string finish();
  bool stopped() const { return stopped_; }
  const std::string& found() const { return found_; }  // which one stopped it

 private:
  std::vector<std::string> stops_;
  std::string held_, found_;
  bool stopped_ = false;
};

}  // namespace mdi
