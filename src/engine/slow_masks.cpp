#include "engine/slow_masks.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace mdi {

SlowMasks::SlowMasks(int64_t vocab) : vocab_(vocab) {
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    throw Error("threads", "the system gives none for masks: " + error.code().message());
  }
}

SlowMasks::~SlowMasks() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<SlowMask> SlowMasks::ask(std::shared_ptr<RequestState> owner, std::span<const int32_t> generated) {
  auto mask = std::make_shared<SlowMask>();
  mask->owner = std::move(owner);
  mask->generated.assign(generated.begin(), generated.end());
  const std::string& name = mask->owner->request.client;
  {
    const std::lock_guard lock(mutex_);
    auto client = std::find_if(turns_.begin(), turns_.end(), [&](const Client& c) { return c.name == name; });
    if (client == turns_.end()) client = turns_.insert(turns_.end(), {name, {}});
    client->waiting.push_back(mask);
  }
  wake_.notify_one();
  return mask;
}

bool SlowMasks::done(const SlowMask& mask) const {
  const std::lock_guard lock(mutex_);
  return mask.done;
}

void SlowMasks::wait(std::span<const std::shared_ptr<SlowMask>> masks, double seconds) const {
  std::unique_lock lock(mutex_);
  made_.wait_for(lock, std::chrono::duration<double>(seconds),
                 [&] { return std::any_of(masks.begin(), masks.end(), [](const auto& mask) { return mask->done; }); });
}

std::shared_ptr<SlowMask> SlowMasks::next() {
  while (!turns_.empty()) {
    Client& client = turns_.front();
    std::shared_ptr<SlowMask> mask = std::move(client.waiting.front());
    client.waiting.pop_front();
    if (client.waiting.empty()) {
      turns_.pop_front();
    } else {
      turns_.splice(turns_.end(), turns_, turns_.begin());
    }
    if (mask.use_count() > 1) return mask;
  }
  return nullptr;
}

void SlowMasks::loop() {
  // The model's threads come first. On Linux this is the thread's own.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
  std::unique_lock lock(mutex_);
  for (;;) {
    std::shared_ptr<SlowMask> mask;
    wake_.wait(lock, [&] { return stopping_ || (mask = next()) != nullptr; });
    if (stopping_) return;
    lock.unlock();
    std::vector<TokenMask> made;
    add_masks(mask->owner->request.allowed, mask->generated, {}, vocab_, made);
    lock.lock();
    mask->mask = std::move(made.front());
    mask->done = true;
    made_.notify_all();
    lock.unlock();
    mask.reset();  // perhaps with the request, which is nothing to hold the lock for
    lock.lock();
  }
}

}  // namespace mdi
