# XGrammar's C++ core as a static library: the matching of grammars against a vocabulary. Only what is needed of its
# source package: no Python, no tvm-ffi. tools/get_xgrammar.sh fetches the sources.
set(xgrammar_home ${CMAKE_SOURCE_DIR}/build/third_party/xgrammar-0.2.9)
if(NOT EXISTS ${xgrammar_home}/stamp)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/get_xgrammar.sh COMMAND_ERROR_IS_FATAL ANY)
endif()

file(GLOB xgrammar_sources ${xgrammar_home}/cpp/*.cc ${xgrammar_home}/cpp/support/*.cc
  ${xgrammar_home}/cpp/converter_ext/*.cc)
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
# Its public headers and those of its two header-only companions, none of them held to our warnings.
target_include_directories(xgrammar SYSTEM PUBLIC ${xgrammar_home}/include ${xgrammar_home}/3rdparty/dlpack/include)
target_include_directories(xgrammar SYSTEM PRIVATE ${xgrammar_home}/3rdparty/picojson)
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
  XGRAMMAR_LOG_CUSTOMIZE=1)  # src/grammar/matcher.cpp takes its messages
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 CXX_CLANG_TIDY "")
# Most of its time to compile is headers that every file reads; the converters' files share names.
set_target_properties(xgrammar PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
file(GLOB xgrammar_converters ${xgrammar_home}/cpp/converter_ext/*.cc)
set_source_files_properties(${xgrammar_converters} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# Optimised in every kind of build: a test under a sanitizer walks the whole vocabulary many times.
target_compile_options(xgrammar PRIVATE -w -O2)
target_link_libraries(xgrammar PUBLIC Threads::Threads)
# What a client's grammar could make it read or write is ours to know; how it counts is not.
if(MDI_SANITIZE MATCHES "address")
  target_compile_options(xgrammar PRIVATE -fsanitize=address -fno-omit-frame-pointer)
endif()
