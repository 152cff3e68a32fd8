// Images that requests bring: as data: URLs or base64 text, and, only where the server allows it, as URLs to fetch.
//
// An image part of a message keeps in `text` the number of its image in the request's list; the prompt has one
// placeholder for it until place_images() makes room for the whole span.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/prefix_key.h"
#include "engine/request.h"
#include "text/chat_message.h"
#include "text/chat_render.h"
#include "text/ordered_json.h"
#include "vision/prepare.h"

namespace mdi {

class Service;

struct ImagePolicy {
  size_t max_images = 100;                     // of a request
  size_t max_bytes = size_t{32} << 20;         // of an encoded image
  size_t max_waiting_bytes = size_t{2} << 30;  // of the prepared images of all requests that wait or run
  int64_t max_pixels = int64_t{50} * 1000 * 1000;
};

// How much of max_waiting_bytes is taken.
using ImageBudget = std::atomic<size_t>;

struct RequestImage {
  PreparedImage picture;
  ImageDigest digest{};
  std::shared_ptr<void> lease;  // of the budget, for as long as the request lives
};

// Reads the images of one request; on a worker.
class ImageReader {
 public:
  explicit ImageReader(const Service& service, ImagePolicy policy = {}) : service_(service), policy_(policy) {}

  // `part`: a part with image_url ({"url"} or the URL itself), or with source ({"type": "base64", "data"} or
  // {"type": "url", "url"}). Returns the message part. Throws ApiError with the path of what is at fault: the model
  // takes text only, not an image, damaged, too large, a URL that may not be fetched, too many.
  ContentPart read(const OrderedJson& part, const std::string& path);

  // The same for the parts that parse_messages left in `messages` as JSON. `inserted`: messages at the front that the
  // client did not send.
  void read_all(std::vector<ChatMessage>& messages, size_t inserted);

  std::vector<RequestImage> take() { return std::move(images_); }

 private:
  std::vector<std::byte> bytes_of(const OrderedJson& part, std::string& path) const;

  const Service& service_;
  ImagePolicy policy_;
  std::vector<RequestImage> images_;
  int64_t tokens_ = 0;
};

// Makes room for the images' spans in the encoded conversation, and puts tokens and images into the request.
void place_images(const ModelConfig& config, EncodedChat encoded, std::vector<RequestImage>& images, Request& request);

// The tokens that the conversation has with its images.
int64_t count_tokens(const EncodedChat& encoded, const std::vector<RequestImage>& images);

// The bytes of base64 text. Throws mdi::Error(where, ...): another alphabet (URL-safe is one), wrong padding, empty.
std::vector<std::byte> decode_base64(std::string_view text, const std::string& where);

// The bytes of a data: URL with base64. Throws mdi::Error(where, ...).
std::vector<std::byte> decode_data_url(std::string_view url, const std::string& where);

}  // namespace mdi
