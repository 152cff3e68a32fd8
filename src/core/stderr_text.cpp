#include "core/stderr_text.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace mdi {

bool write_stderr(std::string_view text, const std::function<bool()>& give_up) {
  constexpr int kLookMs = 100;
  while (!text.empty()) {
    pollfd out{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    int ready = poll(&out, 1, 0);
    if (ready == 0) {
      if (give_up()) return false;
      ready = poll(&out, 1, kLookMs);
    }
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    // What a pipe takes at once when it takes anything: a write does not wait either.
    const ssize_t written = write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace mdi
