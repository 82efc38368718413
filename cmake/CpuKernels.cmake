# The CPU's kernels: C++ over Highway's vectors, compiled once for each instruction set.
#
#   vkrnn_add_cpu_kernels(<target> <folder> <cells>)
#
# makes a static library of the kernels in <folder> (cpp/src/cpu/kernels) and of one file for each cell of
# <cells>/cells/*.glsl.

# They are the same for all processors, so the build machine's do for another one too.
find_path(HIGHWAY_HEADERS hwy/highway.h NO_CMAKE_FIND_ROOT_PATH)
if(NOT HIGHWAY_HEADERS)
    message(FATAL_ERROR "Highway's headers (hwy/highway.h) not found: apt install libhwy-dev")
endif()
set(highway_include ${HIGHWAY_HEADERS})
if(CMAKE_CROSSCOMPILING)
    # What else is in their folder is for the build machine only.
    set(highway_include ${CMAKE_CURRENT_BINARY_DIR}/highway)
    file(MAKE_DIRECTORY ${highway_include})
    file(CREATE_LINK ${HIGHWAY_HEADERS}/hwy ${highway_include}/hwy SYMBOLIC)
endif()

set(VKRNN_CPU_TARGETS "" CACHE STRING
    "Of avx512, avx2 and sse4 those to build kernels for, all where empty; one lane and NEON are always built")

function(vkrnn_add_cpu_kernels target folder cells)
    set(build ${CMAKE_CURRENT_BINARY_DIR}/${target})
    file(GLOB files CONFIGURE_DEPENDS ${cells}/cells/*.glsl)
    set(sources)
    set(CELLS)
    foreach(file ${files})
        get_filename_component(cell ${file} NAME_WE)
        set(source ${build}/${cell}.cpp)
        configure_file(${folder}/cell.cpp.in ${source} @ONLY)
        list(APPEND sources ${source})
        string(APPEND CELLS " X(${cell})")
    endforeach()
    configure_file(${folder}/kernels.cpp.in ${build}/kernels.cpp @ONLY)
    add_library(${target} STATIC ${folder}/products.cpp ${folder}/tiles.cpp ${build}/kernels.cpp ${sources})
    target_include_directories(${target} PRIVATE ${folder} ${PROJECT_SOURCE_DIR}/cpp/src ${PROJECT_SOURCE_DIR}/cpp/include ${cells} ${cells}/include)
    target_include_directories(${target} SYSTEM PRIVATE ${highway_include})
    if(VKRNN_CPU_TARGETS)
        set(unwanted 0)
        foreach(target_bit avx512=8 avx2=9 sse4=11)  # as in hwy/detect_targets.h
            string(REPLACE "=" ";" target_bit ${target_bit})
            list(GET target_bit 0 name)
            list(GET target_bit 1 bit)
            if(NOT name IN_LIST VKRNN_CPU_TARGETS)
                math(EXPR unwanted "${unwanted} | 1 << ${bit}")
            endif()
        endforeach()
        target_compile_definitions(${target} PRIVATE VKRNN_UNWANTED_TARGETS=${unwanted}LL)
    endif()
    # Slow without optimization, even for tests; but what sanitizers add to inlined code takes many minutes to optimize.
    set(optimization -O3)
    if(VKRNN_SANITIZE)
        set(optimization -O1 -g1)
    endif()
    # A compiler that fuses products with sums where it likes does so in one copy of a loop and not in another: then the
    # bits would depend on how units are shared among threads. The kernels fuse by name.
    # Not every cell needs every parameter; what stores of vectors fill, GCC
    # takes for uninitialized.
    target_compile_options(${target} PRIVATE ${optimization} -ffp-contract=off -Wno-unused-parameter -Wno-maybe-uninitialized)
    target_link_libraries(${target} PRIVATE vkrnn_options)
endfunction()
