# Finds what the build needs, and decides whether Vulkan and XLA are part of it.
#
# One error names all missing packages with the command that installs them. Enables C++ and sets:
#
#   VKRNN_WITH_VULKAN     whether Vulkan devices are built
#   VKRNN_MISSING_VULKAN  with VKRNN_VULKAN=AUTO, what is missing and how to install it; else empty
#   VKRNN_WITH_XLA        whether the Python module has the handler for XLA that vkrnn.jax uses
#   HIGHWAY_HEADERS, EIGEN_HEADERS, VULKAN_HEADERS, XLA_HEADERS, GLSLANG, SPIRV_VAL
#                         their paths

# Adds <what> and its Debian package, if there is one, to the lists <group> and <group>_packages if it was not found.
macro(vkrnn_require group found what)
    if(NOT ${found})
        list(APPEND ${group} "${what}")
        list(APPEND ${group}_packages ${ARGN})
    endif()
endmacro()

# Sets <result> to a text that names <what> and how to install <packages>.
function(vkrnn_describe_missing result what packages)
    list(JOIN what "\n  " what)
    set(text "  ${what}")
    if(packages)
        list(JOIN packages " " packages)
        string(APPEND text "\nOn Debian or Ubuntu:\n  apt install ${packages}\nElsewhere, install these projects with "
                           "their headers, which are often packages named -dev or -devel.")
    endif()
    set(${result} ${text} PARENT_SCOPE)
endfunction()

set(needed)
set(needed_packages)
set(vulkan)
set(vulkan_packages)

include(CheckLanguage)
check_language(CXX)
vkrnn_require(needed CMAKE_CXX_COMPILER "a compiler for C++20" g++)
if(CMAKE_CXX_COMPILER)
    enable_language(CXX)
else()
    unset(CMAKE_CXX_COMPILER CACHE)  # otherwise the next run does not look for it
endif()

# Headers are the same for all processors, so those of the build machine can be used in cross builds.
find_path(HIGHWAY_HEADERS hwy/highway.h NO_CMAKE_FIND_ROOT_PATH)
vkrnn_require(needed HIGHWAY_HEADERS "Highway (hwy/highway.h)" libhwy-dev)

if(VKRNN_PYTHON)
    find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
    vkrnn_require(needed Python_FOUND "Python 3.10 or later with its headers" python3-dev)
    # Prefers the interpreter's own pybind11, which fits its NumPy, to the distribution's, which may not.
    if(Python_EXECUTABLE)
        execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir OUTPUT_VARIABLE pybind11_hint ERROR_QUIET
                        OUTPUT_STRIP_TRAILING_WHITESPACE)
    endif()
    find_package(pybind11 CONFIG QUIET HINTS ${pybind11_hint})
    vkrnn_require(needed pybind11_FOUND "pybind11" pybind11-dev)
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
    find_path(XLA_HEADERS xla/ffi/api/ffi.h HINTS ${jaxlib} PATH_SUFFIXES include NO_CMAKE_FIND_ROOT_PATH)
    if(XLA_HEADERS)
        set(VKRNN_WITH_XLA ON)
    elseif(NOT VKRNN_XLA STREQUAL "AUTO")
        vkrnn_require(needed XLA_HEADERS "XLA's headers (xla/ffi/api/ffi.h): pip install jaxlib")
    endif()
endif()
if(VKRNN_TESTS)
    find_path(GTEST_HEADERS gtest/gtest.h NO_CMAKE_FIND_ROOT_PATH)
    vkrnn_require(needed GTEST_HEADERS "GoogleTest (gtest/gtest.h)" libgtest-dev)
endif()
if(VKRNN_BENCH)
    find_path(EIGEN_HEADERS Eigen/Dense PATH_SUFFIXES eigen3)
    vkrnn_require(needed EIGEN_HEADERS "Eigen (Eigen/Dense)" libeigen3-dev)
endif()

if(VKRNN_VULKAN)
    # The build needs only the headers. The loader is opened at run time, when a device is first requested.
    find_path(VULKAN_HEADERS vulkan/vulkan_raii.hpp)
    vkrnn_require(vulkan VULKAN_HEADERS "Vulkan's headers for C++ (vulkan/vulkan_raii.hpp)" libvulkan-dev)
    find_program(GLSLANG NAMES glslangValidator glslang)
    vkrnn_require(vulkan GLSLANG "glslang (the program glslangValidator)" glslang-tools)
    find_program(SPIRV_VAL NAMES spirv-val)
    vkrnn_require(vulkan SPIRV_VAL "SPIRV-Tools (the program spirv-val)" spirv-tools)
endif()

set(VKRNN_WITH_VULKAN OFF)
set(VKRNN_MISSING_VULKAN)
if(VKRNN_VULKAN AND NOT vulkan)
    set(VKRNN_WITH_VULKAN ON)
elseif(vulkan AND VKRNN_VULKAN STREQUAL "AUTO")
    vkrnn_describe_missing(VKRNN_MISSING_VULKAN "${vulkan}" "${vulkan_packages}")
    list(TRANSFORM vulkan APPEND ", only for GPUs")
endif()

if(needed OR (vulkan AND NOT VKRNN_MISSING_VULKAN))
    list(APPEND needed ${vulkan})
    list(APPEND needed_packages ${vulkan_packages})
    vkrnn_describe_missing(text "${needed}" "${needed_packages}")
    message(FATAL_ERROR "vkrnn cannot be built, because these are missing:\n${text}")
endif()
