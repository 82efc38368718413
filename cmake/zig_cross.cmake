# A toolchain file for Windows and macOS with the compiler of zig. Programs for Windows run under Wine.
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
# zig checks code for undefined behaviour if it is compiled without optimization, with a library that it does not link.
set(CMAKE_CXX_FLAGS_INIT "-fno-sanitize=undefined")
if(ZIG_TARGET MATCHES "windows")
    set(CMAKE_SYSTEM_NAME Windows)
    find_program(WINE NAMES wine64 wine PATHS /usr/lib/wine)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${WINE})
else()
    set(CMAKE_SYSTEM_NAME Darwin)
    set(CMAKE_INSTALL_NAME_TOOL :)  # CMake insists on this program, and nothing is installed
    # In zig 0.17 for macOS, <float.h> defines nothing if <math.h> has been included before.
    string(APPEND CMAKE_CXX_FLAGS_INIT " -include float.h")
endif()
set(CMAKE_SYSTEM_PROCESSOR ${processor})

set(CMAKE_C_COMPILER ${zig} cc -target ${ZIG_TARGET})
# Debian's ar does not read the objects of these systems.
foreach(language C CXX)
    set(CMAKE_${language}_ARCHIVE_CREATE "${zig} ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
    set(CMAKE_${language}_ARCHIVE_APPEND "${zig} ar q <TARGET> <LINK_FLAGS> <OBJECTS>")
    set(CMAKE_${language}_ARCHIVE_FINISH "${zig} ranlib <TARGET>")
endforeach()

# Programs come from the build machine, and so do headers that are the same everywhere; libraries do not.
set(CMAKE_PREFIX_PATH /usr)
set(CMAKE_FIND_ROOT_PATH ${CMAKE_CURRENT_LIST_DIR})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
