// WebP through libwebp: still images, and the first frame of animations.
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "core/error.h"
#include "vision/decoders.h"
#include "vision/orientation.h"

namespace mdi {

namespace {

const char* status_text(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return "the file is truncated";
    case VP8_STATUS_OUT_OF_MEMORY:
      return "out of memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "it uses a feature that the decoder does not have";
    default:
      return "the file is damaged";
  }
}

void check(VP8StatusCode status, const std::string& where) {
  if (status != VP8_STATUS_OK) throw Error(where, std::string("cannot be decoded as WebP: ") + status_text(status));
}

template <class T, void (*kDelete)(T*)>
struct Deleter {
  void operator()(T* p) const { kDelete(p); }
};
using Demuxer = std::unique_ptr<WebPDemuxer, Deleter<WebPDemuxer, WebPDemuxDelete>>;

int orientation_of(const WebPData& data) {
  const Demuxer demuxer(WebPDemux(&data));
  WebPChunkIterator chunk;
  if (demuxer == nullptr || WebPDemuxGetChunk(demuxer.get(), "EXIF", 1, &chunk) == 0) return 1;
  const int orientation = exif_orientation(std::as_bytes(std::span(chunk.chunk.bytes, chunk.chunk.size)));
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

// Decodes one picture into the image, its top left corner at (x, y); the picture's size is known to fit.
void decode_into(const WebPData& data, const std::string& where, RgbImage& image, int x, int y) {
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) throw Error(where, "libwebp is of another version than its headers");
  const size_t offset = static_cast<size_t>(y) * image.row_bytes() + static_cast<size_t>(x) * 3;
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = image.pixels.data() + offset;
  config.output.u.RGBA.stride = static_cast<int>(image.row_bytes());
  config.output.u.RGBA.size = image.pixels.size() - offset;
  check(WebPDecode(data.bytes, data.size, &config), where);
}

// The first frame on a black canvas: what remains of a transparent one without its alpha.
void decode_first_frame(const WebPData& data, const std::string& where, RgbImage& image) {
  const Demuxer demuxer(WebPDemux(&data));
  WebPIterator frame;
  if (demuxer == nullptr || WebPDemuxGetFrame(demuxer.get(), 1, &frame) == 0) {
    throw Error(where, "cannot be decoded as WebP: the animation is damaged or truncated");
  }
  const std::unique_ptr<WebPIterator, Deleter<WebPIterator, WebPDemuxReleaseIterator>> release(&frame);
  WebPBitstreamFeatures features;
  check(WebPGetFeatures(frame.fragment.bytes, frame.fragment.size, &features), where);
  const bool fits = features.width == frame.width && features.height == frame.height && frame.x_offset >= 0 &&
                    frame.y_offset >= 0 && frame.width <= image.width - frame.x_offset &&
                    frame.height <= image.height - frame.y_offset;
  if (!fits) throw Error(where, "cannot be decoded as WebP: a frame is not where the animation says");
  decode_into(frame.fragment, where, image, frame.x_offset, frame.y_offset);
}

}  // namespace

DecodedImage decode_webp(std::span<const std::byte> file, const std::string& where, const ImageLimits& limits) {
  const WebPData data{.bytes = reinterpret_cast<const uint8_t*>(file.data()), .size = file.size()};
  WebPBitstreamFeatures features;
  check(WebPGetFeatures(data.bytes, data.size, &features), where);
  check_image_size(features.width, features.height, where, limits);
  DecodedImage decoded;
  RgbImage& image = decoded.image;
  image.width = features.width;
  image.height = features.height;
  image.pixels.resize(image.row_bytes() * static_cast<size_t>(image.height));
  if (features.has_animation != 0) {
    decode_first_frame(data, where, image);
  } else {
    decode_into(data, where, image, 0, 0);
  }
  decoded.orientation = orientation_of(data);
  return decoded;
}

}  // namespace mdi
