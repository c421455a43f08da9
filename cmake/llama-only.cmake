# llama-cpp-python forces llama.cpp's helper library (HTTP client, argument parser, ...) on;
# Edgewise links libllama and ggml only, and leaving the rest out halves the build.
set(LLAMA_BUILD_COMMON OFF)
