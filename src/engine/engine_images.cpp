#include "engine/engine_images.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "engine/engine_core.h"

namespace mdi {

ImageEncoder::ImageEncoder(Context& context, const Model& model, size_t max_bytes)
    : context_(context), model_(model), buffers_(context, model), max_bytes_(max_bytes) {}

ImageEncoder::Result ImageEncoder::encode(const PreparedImage& image, const ImageDigest& digest) {
  const auto same = [&](const Entry& e) {
    return e.digest == digest && static_cast<int64_t>(e.rows.size()) == image.grid.tokens() * model_.config().dim;
  };
  if (const auto found = std::find_if(entries_.begin(), entries_.end(), same); found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return {entries_.front().rows, true};
  }
  Result made{image_rows(context_, model_, image, buffers_), false};
  entries_.push_front({digest, made.rows});
  bytes_ += entries_.front().bytes();
  while (bytes_ > max_bytes_) {
    bytes_ -= entries_.back().bytes();
    entries_.pop_back();
  }
  return made;
}

void EngineCore::insert_by_age(List& list, std::unique_ptr<Sequence> s) {
  const auto behind = std::find_if(list.rbegin(), list.rend(), [&s](const auto& e) { return e->older_than(*s); });
  list.insert(behind.base(), std::move(s));
}

// One image, so that what decodes waits for no more than that.
void EngineCore::encode_next_image() {
  if (encoding_.empty()) return;
  begin_part(HostPart::kImages);
  Sequence& s = *encoding_.front();
  Request& r = s.owner->request;
  const size_t at = r.image_identities.size() - r.pictures.size();
  const double start = now();
  try {
    ImageEncoder::Result encoded = images_->encode(r.pictures.front(), r.image_identities[at].digest);
    r.images.rows.insert(r.images.rows.end(), encoded.rows.begin(), encoded.rows.end());
    ++(encoded.kept ? metrics_.images_kept : metrics_.images_encoded);
  } catch (const Error& e) {
    end_request(s.owner->id, EndReason::kError, "image " + std::to_string(at) + ": " + e.what());
    sweep();
    return;
  }
  begin_part(HostPart::kPlan);
  metrics_.image_seconds.add(part_began_ - start);
  r.pictures.erase(r.pictures.begin());
  if (!r.pictures.empty()) return;
  insert_by_age(waiting_, std::move(encoding_.front()));
  encoding_.erase(encoding_.begin());
}

}  // namespace mdi
