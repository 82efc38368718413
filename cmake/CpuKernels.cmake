# The CPU's kernels: C++ over Highway's vectors, compiled once for each instruction set.
#
#   vkrnn_add_cpu_kernels(<target> <folder> <cells>)
#
# makes a static library of the kernels in <folder> (cpp/src/cpu/kernels) and of one file for each cell of
# <cells>/cells/*.glsl.

find_path(HIGHWAY_HEADERS hwy/highway.h)
if(NOT HIGHWAY_HEADERS)
    message(FATAL_ERROR "Highway's headers (hwy/highway.h) not found: apt install libhwy-dev")
endif()

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
    add_library(${target} STATIC ${folder}/products.cpp ${build}/kernels.cpp ${sources})
    target_include_directories(${target} PRIVATE ${folder} ${PROJECT_SOURCE_DIR}/cpp/src ${PROJECT_SOURCE_DIR}/cpp/include ${cells} ${cells}/include)
    target_include_directories(${target} SYSTEM PRIVATE ${HIGHWAY_HEADERS})
    # Slow without optimization, even for tests. Not every cell needs every parameter; what stores of vectors fill, GCC
    # takes for uninitialized.
    target_compile_options(${target} PRIVATE -O3 -Wno-unused-parameter -Wno-maybe-uninitialized)
    target_link_libraries(${target} PRIVATE vkrnn_options)
endfunction()
