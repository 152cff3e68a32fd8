# The page's files as one C++ source (src/server/page.h). Included, it adds the source to mdi_server; run as a script
# (cmake -D OUTPUT=... -P), it writes it.
set(page_folder ${CMAKE_CURRENT_LIST_DIR}/../src/server/page)

if(NOT CMAKE_SCRIPT_MODE_FILE)
  file(GLOB page_files CONFIGURE_DEPENDS ${page_folder}/*)
  set(page_source ${CMAKE_BINARY_DIR}/page_assets.cpp)
  add_custom_command(OUTPUT ${page_source}
    COMMAND ${CMAKE_COMMAND} -D OUTPUT=${page_source} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${page_files} ${CMAKE_CURRENT_LIST_FILE} COMMENT "Putting the page's files into ${page_source}" VERBATIM)
  target_sources(mdi_server PRIVATE ${page_source})
  return()
endif()

set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")

file(GLOB page_files ${page_folder}/*)
set(entries "")
set(count 0)
file(WRITE ${OUTPUT}.new "// Made from src/server/page.\n#include \"server/page.h\"\n\nnamespace mdi {\n\nnamespace {\n\n")
foreach(file ${page_files})
  get_filename_component(name ${file} NAME)
  string(REGEX REPLACE "^.*\\." "" ending ${name})
  if(NOT DEFINED type_${ending})
    message(FATAL_ERROR "src/server/page/${name}: expected a file that ends in html, css, js or svg")
  endif()
  file(READ ${file} text)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 32 hash)
  string(FIND "${text}" ")page!\"" closes)
  if(closes GREATER_EQUAL 0)
    message(FATAL_ERROR "src/server/page/${name} has )page!\" in it, which ends a C++ literal here")
  endif()
  file(APPEND ${OUTPUT}.new "constexpr std::string_view kText${count} = R\"page!(${text})page!\";\n")
  string(APPEND entries "    {\"${name}\", \"${type_${ending}}\", \"\\\"${hash}\\\"\", kText${count}},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(APPEND ${OUTPUT}.new "\nconstexpr PageAsset kAssets[] = {\n${entries}};\n\n}  // namespace\n\n"
  "std::span<const PageAsset> page_assets() { return kAssets; }\n\n}  // namespace mdi\n")
file(RENAME ${OUTPUT}.new ${OUTPUT})
