# How llama.cpp is built for Outrider, in development and in images. CMake reads it at the beginning of
# llama-cpp-python's project; what CMAKE_ARGS says comes first.

# What Outrider uses of llama.cpp is its library alone. llama-cpp-python asks for the code of llama.cpp's
# programs too, almost half of the build; a variable set here, before it does, takes precedence over its request.
set(LLAMA_BUILD_COMMON OFF)
set(LLAVA_BUILD OFF)

# Kernels for every kind of processor, as plug-ins of which a process loads one: so that one build runs, and runs
# fast, on any host, and a file for which AMX is wrong has others (outrider/engine/kernels.py). On ARM, as in
# llama.cpp's own image, with a compiler that knows all of its extensions. Elsewhere: this machine's own.
include(CheckCXXCompilerFlag)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT GGML_NATIVE AND NOT DEFINED GGML_CPU_ALL_VARIANTS)
    set(has_variants OFF)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
        set(has_variants ON)
    elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
        check_cxx_compiler_flag(-march=armv8.6-a+sve2+sme has_variants)
    endif()
    if(has_variants)
        set(GGML_NATIVE OFF)
        set(GGML_BACKEND_DL ON)
        set(GGML_CPU_ALL_VARIANTS ON)
    endif()
endif()

# Everything in the one folder that llama_cpp loads from, plug-ins too; by default libraries come twice.
set(CMAKE_INSTALL_BINDIR llama_cpp/lib)
set(CMAKE_INSTALL_LIBDIR llama_cpp/lib)

set(amx_header "${CMAKE_CURRENT_LIST_DIR}/amx_gcc.h")

function(finish_llama)
    set(ggml "${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.cpp/ggml/src")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        set_source_files_properties("${ggml}/ggml-cpu/amx/mmq.cpp" DIRECTORY "${ggml}"
            PROPERTIES COMPILE_OPTIONS "-include;${amx_header}")
    endif()
    get_property(targets DIRECTORY "${ggml}" PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target llama ${targets})
        get_target_property(type ${target} TYPE)
        if(type MATCHES "SHARED_LIBRARY|MODULE_LIBRARY")
            set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
            # A wheel has no links: with versions in its name a library would be there three times.
            set_property(TARGET ${target} PROPERTY VERSION)
            set_property(TARGET ${target} PROPERTY SOVERSION)
        endif()
    endforeach()
endfunction()
cmake_language(DEFER CALL finish_llama)
