// Pictures and their files, made by the encoders of the libraries that the decoders use.
#pragma once

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
// clang-format off: the library's header needs what stands above it.
#include <jpeglib.h>
// clang-format on
#include <png.h>
#include <webp/encode.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vision/image.h"

namespace mdi::test {

inline std::span<const std::byte> bytes_of(const std::string& file) {
  return std::as_bytes(std::span(file.data(), file.size()));
}

// Samples [height, width, channels] that differ everywhere but compress well enough for JPEG to stay close.
inline std::vector<uint8_t> gradient(int width, int height, int channels) {
  std::vector<uint8_t> samples;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const int value = c == 0 ? x * 255 / width : c == 1 ? y * 255 / height : c == 2 ? (x + y) * 127 / width : x * 3;
        samples.push_back(static_cast<uint8_t>(value));
      }
    }
  }
  return samples;
}

// An EXIF block that holds an orientation alone.
inline std::string exif_block(int orientation, bool little = true) {
  const auto number = [little](uint32_t value, int size) {
    std::string s;
    for (int i = 0; i < size; ++i) s.push_back(static_cast<char>(value >> (8 * (little ? i : size - 1 - i))));
    return s;
  };
  std::string exif = little ? "II" : "MM";
  exif += number(42, 2) + number(8, 4);
  exif += number(2, 2);
  exif += number(0x0100, 2) + number(4, 2) + number(1, 4) + number(640, 4);
  exif +=
      number(0x0112, 2) + number(3, 2) + number(1, 4) + number(static_cast<uint32_t>(orientation), 2) + number(0, 2);
  return exif + number(0, 4);
}

struct JpegOptions {
  int quality = 95;
  bool progressive = false;
  std::string exif = {};  // with "Exif\0\0" before it in the file
};

// 1, 3 or 4 (CMYK) channels. An encoder's error ends the test program: the library's default.
inline std::string encode_jpeg(const std::vector<uint8_t>& samples, int width, int height, int channels,
                               const JpegOptions& options = {}) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &out, &size);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = channels;
  jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, options.quality, TRUE);
  if (options.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  if (!options.exif.empty()) {
    const std::string marker = std::string("Exif\0\0", 6) + options.exif;
    jpeg_write_marker(&jpeg, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(marker.data()),
                      static_cast<unsigned>(marker.size()));
  }
  std::vector<uint8_t> row(static_cast<size_t>(width) * channels);
  for (int y = 0; y < height; ++y) {
    std::copy_n(samples.begin() + static_cast<ptrdiff_t>(row.size()) * y, row.size(), row.begin());
    unsigned char* rows = row.data();
    jpeg_write_scanlines(&jpeg, &rows, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string file(reinterpret_cast<char*>(out), size);
  jpeg_destroy_compress(&jpeg);
  std::free(out);
  return file;
}

struct PngOptions {
  int colour = PNG_COLOR_TYPE_RGB;
  int depth = 8;
  bool interlaced = false;
  std::string exif = {};
  std::vector<png_color> palette = {};
  std::vector<png_byte> palette_alpha = {};
};

// `rows`: the packed bytes of each row, as PNG stores them (16 bits: the high byte first).
inline std::string encode_png(const std::vector<std::vector<uint8_t>>& rows, int width,
                              const PngOptions& options = {}) {
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp p, png_bytep data, size_t count) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<char*>(data), count);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(rows.size()), options.depth,
               options.colour, options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_BASE,
               PNG_FILTER_TYPE_BASE);
  if (!options.palette.empty()) {
    png_set_PLTE(png, info, options.palette.data(), static_cast<int>(options.palette.size()));
  }
  if (!options.palette_alpha.empty()) {
    png_set_tRNS(png, info, options.palette_alpha.data(), static_cast<int>(options.palette_alpha.size()), nullptr);
  }
  std::string exif = options.exif;
  if (!exif.empty()) {
    png_set_eXIf_1(png, info, static_cast<png_uint_32>(exif.size()), reinterpret_cast<png_bytep>(exif.data()));
  }
  png_write_info(png, info);
  std::vector<png_bytep> pointers;
  for (const auto& row : rows) pointers.push_back(const_cast<png_bytep>(row.data()));
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

inline std::string encode_png(const std::vector<uint8_t>& samples, int width, int height, int channels,
                              PngOptions options = {}) {
  constexpr int kColours[] = {0, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                              PNG_COLOR_TYPE_RGB_ALPHA};
  options.colour = kColours[channels];
  std::vector<std::vector<uint8_t>> rows;
  const ptrdiff_t row = ptrdiff_t{width} * channels;
  for (int y = 0; y < height; ++y) rows.emplace_back(samples.begin() + row * y, samples.begin() + row * (y + 1));
  return encode_png(rows, width, options);
}

// 3 or 4 channels.
inline std::string encode_webp(const std::vector<uint8_t>& samples, int width, int height, int channels,
                               bool lossless = true) {
  uint8_t* out = nullptr;
  const int stride = width * channels;
  size_t size = 0;
  if (lossless) {
    size = channels == 3 ? WebPEncodeLosslessRGB(samples.data(), width, height, stride, &out)
                         : WebPEncodeLosslessRGBA(samples.data(), width, height, stride, &out);
  } else {
    size = channels == 3 ? WebPEncodeRGB(samples.data(), width, height, stride, 95, &out)
                         : WebPEncodeRGBA(samples.data(), width, height, stride, 95, &out);
  }
  std::string file(reinterpret_cast<char*>(out), size);
  WebPFree(out);
  return file;
}

inline std::string riff_chunk(const std::string& tag, const std::string& data) {
  std::string chunk = tag;
  for (int i = 0; i < 4; ++i) chunk.push_back(static_cast<char>(data.size() >> (8 * i)));
  return chunk + data + std::string(data.size() % 2, '\0');
}

inline std::string number24(int value) {
  return {static_cast<char>(value), static_cast<char>(value >> 8), static_cast<char>(value >> 16)};
}

// A simple WebP file as the picture of an extended one, with flags and more chunks.
inline std::string extended_webp(int flags, int width, int height, const std::string& chunks) {
  const std::string header =
      std::string(1, static_cast<char>(flags)) + std::string(3, '\0') + number24(width - 1) + number24(height - 1);
  const std::string body = "WEBP" + riff_chunk("VP8X", header) + chunks;
  return riff_chunk("RIFF", body);
}

inline std::string webp_with_exif(const std::string& file, int width, int height, const std::string& exif) {
  return extended_webp(0x08, width, height, file.substr(12) + riff_chunk("EXIF", exif));
}

// One frame of an animation, its top left corner at (x, y), both even.
inline std::string webp_frame(const std::string& file, int x, int y, int width, int height) {
  return riff_chunk("ANMF", number24(x / 2) + number24(y / 2) + number24(width - 1) + number24(height - 1) +
                                number24(100) + std::string(1, '\0') + file.substr(12));
}

inline std::string animated_webp(int width, int height, const std::string& frames) {
  return extended_webp(0x02, width, height, riff_chunk("ANIM", std::string(6, '\0')) + frames);
}

// The RGB part of samples of 3 or 4 channels.
inline std::vector<uint8_t> rgb_of(const std::vector<uint8_t>& samples, int channels) {
  std::vector<uint8_t> rgb;
  for (size_t i = 0; i < samples.size(); i += static_cast<size_t>(channels)) {
    rgb.insert(rgb.end(), samples.begin() + static_cast<ptrdiff_t>(i), samples.begin() + static_cast<ptrdiff_t>(i) + 3);
  }
  return rgb;
}

inline int largest_difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size()) return 256;
  int largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace mdi::test
