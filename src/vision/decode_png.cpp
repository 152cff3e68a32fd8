// PNG through libpng. Errors jump back into the function that called the library, so those functions hold nothing that
// needs destroying; everything they work on lives in PngReader, outside the jump.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "vision/decoders.h"
#include "vision/orientation.h"

namespace mdi {

namespace {

// Deflate cannot pack more than this many bytes into one, so fewer file bytes cannot hold the image.
constexpr uint64_t kMostDeflateRatio = 1032;

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::byte> left;  // not yet read
  char message[160]{};

  PngReader() = default;
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader->message, sizeof reader->message, "%s", message);
  png_longjmp(png, 1);
}

// What the library can go on after leaves the pixels as they are.
void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep to, size_t count) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (count > reader->left.size()) png_error(png, "the file is truncated");
  std::memcpy(to, reader->left.data(), count);
  reader->left = reader->left.subspan(count);
}

bool start(PngReader& reader, const ImageLimits& limits) {
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
  if (reader.png != nullptr) reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) {
    std::snprintf(reader.message, sizeof reader.message, "out of memory");
    return false;
  }
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_read_fn(reader.png, &reader, read_bytes);
  const auto side = static_cast<png_uint_32>(limits.max_side);
  png_set_user_limits(reader.png, side, side);
  // Everything but the palette, transparency and pixels is passed over: profiles and texts may unpack to anything, and
  // the library takes memory for a chunk by the length that it claims.
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(reader.png, reader.info);
  return true;
}

// Asks for 8-bit RGB rows whatever is stored. Returns the number of passes, 0: `message` says why not.
int start_pixels(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return 0;
  png_set_strip_16(reader.png);
  png_set_palette_to_rgb(reader.png);
  png_set_expand_gray_1_2_4_to_8(reader.png);
  png_set_gray_to_rgb(reader.png);
  png_set_strip_alpha(reader.png);
  const int passes = png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return passes;
}

bool read_rows(PngReader& reader, RgbImage& image, int passes) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  for (int pass = 0; pass < passes; ++pass) {
    for (int32_t y = 0; y < image.height; ++y) png_read_row(reader.png, image.row(y), nullptr);
  }
  png_read_end(reader.png, reader.info);
  return true;
}

uint32_t number_at(std::span<const std::byte> file, size_t at) {
  return png_get_uint_32(reinterpret_cast<png_const_bytep>(file.data()) + at);
}

// The orientation in the eXIf chunk, which may stand before or behind the pixels. A chunk is its length, four letters,
// that many bytes and a checksum.
int orientation_of(std::span<const std::byte> file) {
  constexpr size_t kSignature = 8, kFrame = 12;
  for (size_t at = kSignature; at + kFrame <= file.size();) {
    const size_t length = number_at(file, at);
    if (length > file.size() - at - kFrame) break;
    if (std::memcmp(file.data() + at + 4, "eXIf", 4) == 0) return exif_orientation(file.subspan(at + 8, length));
    at += kFrame + length;
  }
  return 1;
}

}  // namespace

DecodedImage decode_png(std::span<const std::byte> file, const std::string& where, const ImageLimits& limits) {
  PngReader reader;
  reader.left = file;
  const auto check = [&](bool good) {
    if (!good) throw Error(where, std::string("cannot be decoded as PNG: ") + reader.message);
  };
  // libpng's own size check would say less, so sides past the limit are looked at first: width and height are the first
  // two numbers of the first chunk.
  if (file.size() >= 24) {
    check_image_size(number_at(file, 16), number_at(file, 20), where, limits);
  }
  check(start(reader, limits));

  DecodedImage decoded;
  RgbImage& image = decoded.image;
  image.width = static_cast<int32_t>(png_get_image_width(reader.png, reader.info));
  image.height = static_cast<int32_t>(png_get_image_height(reader.png, reader.info));
  const uint64_t packed = png_get_rowbytes(reader.png, reader.info) * static_cast<uint64_t>(image.height);
  if (packed / kMostDeflateRatio > file.size()) {
    throw Error(where, "cannot be decoded as PNG: the file is truncated: its " + std::to_string(file.size()) +
                           " bytes cannot hold the pixels that it claims");
  }
  const int passes = start_pixels(reader);
  check(passes > 0);
  if (png_get_rowbytes(reader.png, reader.info) != image.row_bytes()) {
    throw Error(where, "cannot be decoded as PNG: its pixels do not become RGB");
  }
  image.pixels.resize(image.row_bytes() * static_cast<size_t>(image.height));
  check(read_rows(reader, image, passes));
  decoded.orientation = orientation_of(file);
  return decoded;
}

}  // namespace mdi
