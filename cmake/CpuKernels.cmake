# The CPU kernels: C++ over Highway's vectors, compiled once for each instruction set.
#
#   vkrnn_add_cpu_kernels(<target>)
#
# makes a static library of the kernels that do not depend on cells.
#
#   vkrnn_add_cells(<target> <rows> <folder>)
#
# makes an object library of cells for targets that link to vkrnn_core: <rows>, which defines vkrnn::cells(), and the
# time loops of each of <folder>/cells/*.glsl. vkrnn_add_kernels makes their Vulkan kernels.

set(highway_include ${HIGHWAY_HEADERS})
if(CMAKE_CROSSCOMPILING)
    # The folder of Highway's headers may have other headers, too, which are for the build machine only.
    set(highway_include ${CMAKE_CURRENT_BINARY_DIR}/highway)
    file(MAKE_DIRECTORY ${highway_include})
    file(CREATE_LINK ${HIGHWAY_HEADERS}/hwy ${highway_include}/hwy SYMBOLIC)
endif()

set(VKRNN_CPU_TARGETS "" CACHE STRING
    "Instruction sets to build kernels for: any of avx512, avx2, sse4; all if empty. Scalar and NEON are always built")

set(VKRNN_CPU_KERNELS ${PROJECT_SOURCE_DIR}/cpp/src/cpu/kernels)

# Compiler options of a target's sources for each instruction set.
function(vkrnn_set_cpu_options target)
    target_include_directories(${target} PRIVATE
        ${VKRNN_CPU_KERNELS} ${PROJECT_SOURCE_DIR}/cpp/src ${PROJECT_SOURCE_DIR}/cpp/include ${PROJECT_SOURCE_DIR}/shaders)
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
    # Without optimization the kernels are slow, so only builds for few tests do without.
    set(optimization)
    if(NOT VKRNN_SANITIZE AND NOT VKRNN_QUICK_KERNELS)
        set(optimization -O3)
    endif()
    # The kernels fuse products and sums explicitly. If the compiler did it, too, it would do so in some copies of a
    # loop and not in others, and results would depend on how threads share the units.
    # Some cells do not use all parameters. GCC wrongly reports arrays that vectors fill as uninitialized. For Clang, the
    # last option about a warning counts, so the general ones come first.
    target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:vkrnn_options,INTERFACE_COMPILE_OPTIONS> ${optimization}
        -ffp-contract=off -Wno-unused-parameter $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_link_libraries(${target} PRIVATE vkrnn_options)
endfunction()

function(vkrnn_add_cpu_kernels target)
    add_library(${target} STATIC ${VKRNN_CPU_KERNELS}/hash.cpp ${VKRNN_CPU_KERNELS}/products.cpp ${VKRNN_CPU_KERNELS}/tiles.cpp)
    vkrnn_set_cpu_options(${target})
    target_include_directories(${target} SYSTEM PRIVATE ${PROJECT_SOURCE_DIR}/cpp/third_party/xxhash)
endfunction()

function(vkrnn_add_cells target rows folder)
    set(build ${CMAKE_CURRENT_BINARY_DIR}/${target})
    file(GLOB files CONFIGURE_DEPENDS ${folder}/cells/*.glsl)
    set(sources)
    set(CELLS)
    foreach(file ${files})
        get_filename_component(cell ${file} NAME_WE)
        set(source ${build}/${cell}.cpp)
        configure_file(${VKRNN_CPU_KERNELS}/cell.cpp.in ${source} @ONLY)
        list(APPEND sources ${source})
        string(APPEND CELLS " X(${cell})")
    endforeach()
    configure_file(${VKRNN_CPU_KERNELS}/kernels.cpp.in ${build}/kernels.cpp @ONLY)
    add_library(${target} OBJECT ${rows} ${build}/kernels.cpp ${sources})
    vkrnn_set_cpu_options(${target})
    target_include_directories(${target} PRIVATE ${folder})
endfunction()
