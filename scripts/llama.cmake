# What Outrider uses of llama.cpp is its library alone. llama-cpp-python asks for the code of llama.cpp's
# programs too, almost half of the build; a variable set here, before it does, takes precedence over its request.
set(LLAMA_BUILD_COMMON OFF)
