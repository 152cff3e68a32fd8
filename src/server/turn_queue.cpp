#include "server/turn_queue.h"

#include <algorithm>
#include <iterator>

namespace mdi {

void TurnEntry::end(EndReason reason, const std::string& error) const {
  for (int32_t sample = 0; sample < n; ++sample) {
    Event event;
    event.sample = sample;
    event.end = reason;
    event.error = error;
    event.usage.prompt_tokens = prompt_tokens;
    event.last = sample + 1 == n;
    on_event(event);
  }
}

TurnHold* TurnQueue::Client::next() const {
  return !paused.empty() ? paused.front() : waiting.empty() ? nullptr : waiting.front().hold.get();
}

bool TurnQueue::fits(const TurnHold& hold) const {
  if (samples == 0) return true;
  if (samples + hold.samples > slots + spare) return false;
  // What prompts share, and what the prefix cache holds, is not known here: where blocks seem to be short the engine
  // gets one more whenever it has started all that it has.
  return blocks + hold.blocks <= all_blocks || unstarted == 0;
}

void TurnQueue::run(Client& client, TurnHold& hold) {
  client.running.push_back(&hold);
  samples += hold.samples;
  client.samples += hold.samples;
  blocks += hold.blocks;
  unstarted += hold.started ? 0 : 1;
}

void TurnQueue::leave(Client& client, TurnHold& hold) {
  std::erase(client.running, &hold);
  samples -= hold.samples;
  client.samples -= hold.samples;
  blocks -= hold.blocks;
  unstarted -= hold.started ? 0 : 1;
}

// The youngest request of the client that has most, where it may be paused for `hold` of `for_client`.
std::pair<TurnQueue::Client*, TurnHold*> TurnQueue::victim(const Client& for_client, const TurnHold& hold) {
  Client* most = nullptr;
  for (auto& [name, client] : clients) {
    if (most == nullptr || client.samples > most->samples) most = &client;
  }
  if (most == nullptr || most->running.empty()) return {};
  TurnHold* youngest = most->running.back();
  const bool known = youngest->id != 0;  // else it is on its way to the engine, and soon there
  if (!known || most->samples - youngest->samples < for_client.samples + hold.samples) return {};
  return {most, youngest};
}

// Pauses until there is a slot for it, or, where that cannot be, nothing.
bool TurnQueue::make_room(const Client& for_client, const TurnHold& hold) {
  if (blocks + hold.blocks > all_blocks && unstarted > 0) return false;
  std::vector<std::pair<Client*, TurnHold*>> paused;
  while (samples + hold.samples > slots) {
    const auto [client, youngest] = victim(for_client, hold);
    if (youngest == nullptr) break;
    leave(*client, *youngest);
    paused.emplace_back(client, youngest);
  }
  const bool enough = samples + hold.samples <= slots;
  if (!enough) std::reverse(paused.begin(), paused.end());
  for (const auto& [client, youngest] : paused) {
    if (enough) {
      youngest->paused = true;
      client->paused.push_front(youngest);
      orders.push_back({TurnOrder::Kind::kPause, youngest->id, std::nullopt});
    } else {
      run(*client, *youngest);
    }
  }
  return enough;
}

void TurnQueue::grant() {
  for (;;) {
    Client* next = nullptr;
    for (auto& [name, client] : clients) {
      if (client.next() == nullptr) continue;
      if (next == nullptr || std::pair(client.samples, client.served) < std::pair(next->samples, next->served)) {
        next = &client;
      }
    }
    if (next == nullptr) return;
    TurnHold& hold = *next->next();
    if (!fits(hold) && !make_room(*next, hold)) return;
    if (hold.paused) {
      next->paused.pop_front();
      hold.paused = false;
      orders.push_back({TurnOrder::Kind::kResume, hold.id, std::nullopt});
    } else {
      orders.push_back({TurnOrder::Kind::kSubmit, 0, std::move(next->waiting.front())});
      next->waiting.pop_front();
      hold.granted = true;
      --waiting;
    }
    run(*next, hold);
    next->served = ++turns;
  }
}

std::vector<TurnEntry> TurnQueue::take(const std::function<bool(const TurnEntry&)>& wanted) {
  std::vector<TurnEntry> out;
  for (auto at = clients.begin(); at != clients.end();) {
    std::deque<TurnEntry>& queue = at->second.waiting;
    for (size_t i = 0; i < queue.size();) {
      if (!wanted(queue[i])) {
        ++i;
        continue;
      }
      out.push_back(std::move(queue[i]));
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
      --waiting;
    }
    at = at->second.done() ? clients.erase(at) : std::next(at);
  }
  return out;
}

void TurnQueue::drop(const TurnHold* hold) {
  std::vector<TurnEntry> dropped;
  {
    const std::lock_guard lock(mutex);
    dropped = take([hold](const TurnEntry& entry) { return entry.hold.get() == hold; });
    cancelled += static_cast<int64_t>(dropped.size());
  }
  for (const TurnEntry& entry : dropped) entry.end(EndReason::kCancelled, {});
}

TurnHold::~TurnHold() {
  {
    const std::lock_guard lock(queue->mutex);
    queue->all.erase(this);
    if (!granted) return;
    const auto own = queue->clients.find(client);
    if (paused) {
      std::erase(own->second.paused, this);
    } else {
      queue->leave(own->second, *this);
    }
    if (own->second.done()) queue->clients.erase(own);
  }
  queue->wake.notify_one();
}

void TurnHold::start() {
  {
    const std::lock_guard lock(queue->mutex);
    if (std::exchange(started, true)) return;
    queue->unstarted -= granted && !paused ? 1 : 0;
  }
  queue->wake.notify_one();
}

}  // namespace mdi
