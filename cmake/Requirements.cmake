# Finds what the build needs, and decides whether XLA is part of it.
#
# One error names all missing packages with the command that installs them. Enables C++ and sets:
#
#   VKRNN_BUNDLED         the folder of headers and SPIR-V that a source package has (.ci/sdist), and the repository has not
#   VKRNN_WITH_XLA        whether the Python module has the handler for XLA that vkrnn.jax uses
#   HIGHWAY_HEADERS, EIGEN_HEADERS, VULKAN_HEADERS, XLA_HEADERS, GLSLANG, SPIRV_VAL
#                         their paths

# Adds <what> and its Debian package, if there is one, to the lists missing and packages if it was not found.
macro(vkrnn_require found what)
    if(NOT ${found})
        list(APPEND missing "${what}")
        list(APPEND packages ${ARGN})
    endif()
endmacro()

set(missing)
set(packages)
set(VKRNN_BUNDLED ${PROJECT_SOURCE_DIR}/bundled)

include(CheckLanguage)
check_language(CXX)
vkrnn_require(CMAKE_CXX_COMPILER "a compiler for C++20" g++)
if(CMAKE_CXX_COMPILER)
    enable_language(CXX)
else()
    unset(CMAKE_CXX_COMPILER CACHE)  # otherwise the next run does not look for it
endif()

# Headers are the same for all processors, so those of the build machine can be used in cross builds.
find_path(HIGHWAY_HEADERS hwy/highway.h HINTS ${VKRNN_BUNDLED}/include NO_CMAKE_FIND_ROOT_PATH)
vkrnn_require(HIGHWAY_HEADERS "Highway (hwy/highway.h)" libhwy-dev)

if(VKRNN_PYTHON)
    find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
    vkrnn_require(Python_FOUND "Python 3.10 or later with its headers" python3-dev)
    # Prefers the interpreter's own pybind11, which fits its NumPy, to the distribution's, which may not.
    if(Python_EXECUTABLE)
        execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir OUTPUT_VARIABLE pybind11_hint ERROR_QUIET
                        OUTPUT_STRIP_TRAILING_WHITESPACE)
    endif()
    find_package(pybind11 CONFIG QUIET HINTS ${pybind11_hint})
    vkrnn_require(pybind11_FOUND "pybind11" pybind11-dev)
endif()
set(VKRNN_WITH_XLA OFF)
if(VKRNN_PYTHON AND VKRNN_XLA)
    if(XLA_HEADERS AND NOT EXISTS ${XLA_HEADERS}/xla/ffi/api/ffi.h)
        unset(XLA_HEADERS CACHE)  # pip builds in an environment that it removes afterwards
    endif()
    if(Python_EXECUTABLE)
        set(find_jaxlib "from importlib.util import find_spec; print(*find_spec('jaxlib').submodule_search_locations, sep=';')")
        execute_process(COMMAND ${Python_EXECUTABLE} -c "${find_jaxlib}" OUTPUT_VARIABLE jaxlib ERROR_QUIET
                        OUTPUT_STRIP_TRAILING_WHITESPACE)
    endif()
    find_path(XLA_HEADERS xla/ffi/api/ffi.h HINTS ${VKRNN_BUNDLED} ${jaxlib} PATH_SUFFIXES include NO_CMAKE_FIND_ROOT_PATH)
    if(XLA_HEADERS)
        set(VKRNN_WITH_XLA ON)
    elseif(NOT VKRNN_XLA STREQUAL "AUTO")
        vkrnn_require(XLA_HEADERS "XLA's headers (xla/ffi/api/ffi.h): pip install jaxlib")
    endif()
endif()
if(VKRNN_TESTS)
    find_path(GTEST_HEADERS gtest/gtest.h NO_CMAKE_FIND_ROOT_PATH)
    vkrnn_require(GTEST_HEADERS "GoogleTest (gtest/gtest.h)" libgtest-dev)
endif()
if(VKRNN_BENCH)
    find_path(EIGEN_HEADERS Eigen/Dense PATH_SUFFIXES eigen3)
    vkrnn_require(EIGEN_HEADERS "Eigen (Eigen/Dense)" libeigen3-dev)
endif()

if(VKRNN_VULKAN)
    # The build needs only the headers. The loader is opened at run time, when a device is first requested.
    find_path(VULKAN_HEADERS vulkan/vulkan_raii.hpp HINTS ${VKRNN_BUNDLED}/include NO_CMAKE_FIND_ROOT_PATH)
    vkrnn_require(VULKAN_HEADERS "Vulkan's headers for C++ (vulkan/vulkan_raii.hpp), for GPUs" libvulkan-dev)
    if(VKRNN_TESTS OR NOT EXISTS ${VKRNN_BUNDLED}/spirv)
        find_program(GLSLANG NAMES glslangValidator glslang)
        vkrnn_require(GLSLANG "glslang (the program glslangValidator), for GPUs" glslang-tools)
        find_program(SPIRV_VAL NAMES spirv-val)
        vkrnn_require(SPIRV_VAL "SPIRV-Tools (the program spirv-val), for GPUs" spirv-tools)
    endif()
endif()

if(missing)
    set(vulkan ${missing})
    list(FILTER vulkan INCLUDE REGEX "for GPUs$")
    list(JOIN missing "\n  " text)
    if(packages)
        list(JOIN packages " " packages)
        string(APPEND text "\nOn Debian or Ubuntu:\n  apt install ${packages}\nElsewhere, install these projects with "
                           "their headers, which are often packages named -dev or -devel.")
    endif()
    if(vulkan)
        string(APPEND text "\nTo use the CPU alone, build with VKRNN_VULKAN=OFF (pip: -C cmake.define.VKRNN_VULKAN=OFF).")
    endif()
    message(FATAL_ERROR "vkrnn cannot be built, because these are missing:\n  ${text}")
endif()
