// JPEG through libjpeg-turbo. The library reports errors through a callback that must not return: it jumps back into
// the function that called the library. So those functions hold nothing that needs destroying; everything they work on
// lives in JpegReader, outside the jump.
#include <csetjmp>
#include <cstdio>
#include <cstring>
// clang-format off: each of the library's headers needs what stands above it.
#include <jerror.h>
#include <jpeglib.h>
// clang-format on

#include "core/error.h"
#include "vision/decoders.h"
#include "vision/orientation.h"

namespace mdi {

namespace {

// A progressive file may repeat scans over the whole image without end; real ones have about ten a component.
constexpr int kMostScans = 64;

constexpr int kExifMarker = JPEG_APP0 + 1;

struct JpegReader {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump{};
  char message[JMSG_LENGTH_MAX]{};

  JpegReader() = default;
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() { jpeg_destroy_decompress(&jpeg); }
};

[[noreturn]] void fail(j_common_ptr common) {
  auto* reader = static_cast<JpegReader*>(common->client_data);
  common->err->format_message(common, reader->message);
  std::longjmp(reader->jump, 1);
}

[[noreturn]] void fail_with(j_common_ptr common, const char* message) {
  auto* reader = static_cast<JpegReader*>(common->client_data);
  std::snprintf(reader->message, sizeof reader->message, "%s", message);
  std::longjmp(reader->jump, 1);
}

// Most warnings mean missing or damaged pixels, which the library would fill in with grey: they are errors here.
void on_message(j_common_ptr common, int level) {
  if (level >= 0) return;
  switch (common->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_ICC:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      return;
    case JWRN_JPEG_EOF:
      fail_with(common, "the file is truncated");
    default:
      fail(common);
  }
}

void on_progress(j_common_ptr common) {
  if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number > kMostScans) {
    fail_with(common, "it has more scans than any real image");
  }
}

// Reads up to the pixels. False: `message` says why not.
bool start(JpegReader& reader, std::span<const std::byte> file) {
  reader.jpeg.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = fail;
  reader.errors.emit_message = on_message;
  reader.jpeg.client_data = &reader;
  if (setjmp(reader.jump) != 0) return false;
  jpeg_create_decompress(&reader.jpeg);
  reader.progress.progress_monitor = on_progress;
  reader.jpeg.progress = &reader.progress;
  jpeg_mem_src(&reader.jpeg, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_save_markers(&reader.jpeg, kExifMarker, 0xFFFF);
  jpeg_read_header(&reader.jpeg, TRUE);
  return true;
}

bool start_pixels(JpegReader& reader, J_COLOR_SPACE colours) {
  if (setjmp(reader.jump) != 0) return false;
  reader.jpeg.out_color_space = colours;
  jpeg_start_decompress(&reader.jpeg);
  return true;
}

bool read_row(JpegReader& reader, uint8_t* row) {
  if (setjmp(reader.jump) != 0) return false;
  return jpeg_read_scanlines(&reader.jpeg, &row, 1) == 1;
}

bool finish(JpegReader& reader) {
  if (setjmp(reader.jump) != 0) return false;
  jpeg_finish_decompress(&reader.jpeg);
  return true;
}

int orientation_of(const jpeg_decompress_struct& jpeg) {
  for (const jpeg_marker_struct* m = jpeg.marker_list; m != nullptr; m = m->next) {
    if (m->marker == kExifMarker && m->data_length >= 6 && std::memcmp(m->data, "Exif\0\0", 6) == 0) {
      return exif_orientation(std::as_bytes(std::span(m->data, m->data_length)));
    }
  }
  return 1;
}

// Four inks are stored inverted, by the convention that every writer follows: each byte is how much white is left.
void add_cmyk_row(const std::vector<uint8_t>& row, std::vector<uint8_t>& pixels) {
  for (size_t i = 0; i < row.size(); i += 4) {
    const int white = row[i + 3];
    for (size_t c = 0; c < 3; ++c) {
      const int product = (255 - row[i + c]) * white + 128;
      pixels.push_back(static_cast<uint8_t>(white - (((product >> 8) + product) >> 8)));
    }
  }
}

}  // namespace

DecodedImage decode_jpeg(std::span<const std::byte> file, const std::string& where, const ImageLimits& limits) {
  JpegReader reader;
  const auto check = [&](bool good) {
    if (!good) throw Error(where, std::string("cannot be decoded as JPEG: ") + reader.message);
  };
  check(start(reader, file));
  check_image_size(reader.jpeg.image_width, reader.jpeg.image_height, where, limits);
  DecodedImage decoded;
  decoded.orientation = orientation_of(reader.jpeg);
  const bool cmyk = reader.jpeg.num_components == 4;
  check(start_pixels(reader, cmyk ? JCS_CMYK : JCS_RGB));

  RgbImage& image = decoded.image;
  image.width = static_cast<int32_t>(reader.jpeg.output_width);
  image.height = static_cast<int32_t>(reader.jpeg.output_height);
  // Grows with the rows that are really there, so that a short file that claims to be huge stays small.
  std::vector<uint8_t> row(static_cast<size_t>(image.width) * static_cast<size_t>(reader.jpeg.output_components));
  for (int32_t y = 0; y < image.height; ++y) {
    check(read_row(reader, row.data()));
    if (cmyk) {
      add_cmyk_row(row, image.pixels);
    } else {
      image.pixels.insert(image.pixels.end(), row.begin(), row.end());
    }
  }
  check(finish(reader));
  return decoded;
}

}  // namespace mdi
