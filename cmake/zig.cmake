# A toolchain file for the C++ compiler of zig, which PyPI has as ziglang. It brings headers and libraries of each system.
# ZIG_TARGET is the system to build for. x86_64-linux-gnu.2.28 is Linux with glibc 2.28 or newer.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG_TARGET)

find_program(PYTHON_ZIG python-zig REQUIRED)  # a script of the package, whose program does without Python
cmake_path(GET PYTHON_ZIG PARENT_PATH folder)
file(GLOB zig ${folder}/../lib/python*/site-packages/ziglang/zig)
set(CMAKE_CXX_COMPILER ${zig} c++ -target ${ZIG_TARGET})

string(REGEX MATCH "^[^-]*" processor ${ZIG_TARGET})
if(NOT processor STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
    set(CMAKE_SYSTEM_NAME Linux)
    set(CMAKE_SYSTEM_PROCESSOR ${processor})
endif()
