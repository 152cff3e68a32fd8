#include "vision/decode.h"

#include <string_view>

#include "core/error.h"
#include "core/printable.h"
#include "vision/decoders.h"
#include "vision/orientation.h"

namespace mdi {

namespace {

using namespace std::string_view_literals;

constexpr auto kJpeg = "\xFF\xD8\xFF"sv;
constexpr auto kPng = "\x89PNG\r\n\x1A\n"sv;

bool is_webp(std::string_view file) { return file.starts_with("RIFF"sv) && file.substr(0, 12).ends_with("WEBP"sv); }

// The name of a format that people send and this decoder does not read; empty if it is not one.
std::string_view foreign_format(std::string_view file) {
  struct Magic {
    size_t offset;
    std::string_view bytes, name;
  };
  constexpr Magic kMagics[] = {
      {0, "GIF8"sv, "a GIF"},
      {0, "BM"sv, "a BMP"},
      {0, "II*\0"sv, "a TIFF"},
      {0, "MM\0*"sv, "a TIFF"},
      {4, "ftypavif"sv, "an AVIF"},
      {4, "ftyphei"sv, "a HEIF"},
      {4, "ftypmif1"sv, "a HEIF"},
      {0, "%PDF"sv, "a PDF"},
      {0, "\0\0\1\0"sv, "an icon"},
      {0, "<svg"sv, "an SVG"},
      {0, "<?xml"sv, "an XML document"},
      {0, "\xFF\x0A"sv, "a JPEG XL"},
  };
  for (const Magic& magic : kMagics) {
    if (file.size() > magic.offset && file.substr(magic.offset).starts_with(magic.bytes)) return magic.name;
  }
  return {};
}

[[noreturn]] void refuse_format(std::string_view file, const std::string& where) {
  const std::string_view name = foreign_format(file);
  const std::string found =
      name.empty() ? "bytes that begin with '" + printable(file.substr(0, 8)) + "'" : std::string(name) + " file";
  throw Error(where, "expected a JPEG, PNG or WebP image, found " + found);
}

DecodedImage decode_any(std::span<const std::byte> file, const std::string& where, const ImageLimits& limits) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.starts_with(kJpeg)) return decode_jpeg(file, where, limits);
  if (text.starts_with(kPng)) return decode_png(file, where, limits);
  if (is_webp(text)) return decode_webp(file, where, limits);
  refuse_format(text, where);
}

}  // namespace

void check_image_size(int64_t width, int64_t height, const std::string& where, const ImageLimits& limits) {
  const std::string found = "found " + std::to_string(width) + " x " + std::to_string(height);
  if (width < 1 || height < 1) throw Error(where, "expected an image of at least one pixel a side, " + found);
  if (width > limits.max_side || height > limits.max_side) {
    throw Error(where, "too large: expected at most " + std::to_string(limits.max_side) + " pixels a side, " + found);
  }
  if (width * height > limits.max_pixels) {
    throw Error(where, "too large: expected at most " + std::to_string(limits.max_pixels) + " pixels, " + found);
  }
}

RgbImage decode_image(std::span<const std::byte> file, const std::string& where, const ImageLimits& limits) {
  if (file.empty()) throw Error(where, "expected a JPEG, PNG or WebP image, found no bytes");
  if (file.size() > limits.max_bytes) {
    throw Error(where, "too large: expected an image file of at most " + std::to_string(limits.max_bytes) +
                           " bytes, found " + std::to_string(file.size()));
  }
  DecodedImage decoded = decode_any(file, where, limits);
  return turn_upright(std::move(decoded.image), decoded.orientation);
}

}  // namespace mdi
