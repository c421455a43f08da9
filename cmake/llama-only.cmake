# Read by CMake when it enters llama.cpp (CMAKE_PROJECT_llama.cpp_INCLUDE).

# llama-cpp-python forces llama.cpp's helper library (HTTP client, argument parser, ...) on;
# Edgewise links libllama and ggml only, and leaving the rest out halves the build.
set(LLAMA_BUILD_COMMON OFF)

# GCC before 13 tells its optimiser that _tile_loadconfig reads eight bytes, so most of the tile
# shapes that ggml sets up are dropped and the first AMX instruction is illegal. GCC before 11 has no
# AMX, and no options for it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13
   AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 11 AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_compile_options(-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
endif()
