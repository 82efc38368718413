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

set(VKRNN_CPU_KERNELS ${PROJECT_SOURCE_DIR}/cpp/src/cpu/kernels)

set(VKRNN_CPU_TARGETS "" CACHE STRING
    "Instruction sets to build kernels for: any of avx512, avx2, sse4, beside scalar and NEON; or all, as if empty; or native, the best of this processor alone")

# Sets VKRNN_NATIVE_TARGET to the best instruction set of the processor that builds.
function(vkrnn_find_native_target)
    if(CMAKE_CROSSCOMPILING)
        message(FATAL_ERROR "VKRNN_CPU_TARGETS=native: the kernels are for another system than this one")
    endif()
    set(probe ${CMAKE_CURRENT_BINARY_DIR}/native.cpp)
    file(CONFIGURE OUTPUT ${probe} @ONLY CONTENT
"#include <cstdio>
#include \"processor.h\"
int main() {
    const auto has = vkrnn::cpu::this_processor();
    std::fputs(has.avx512 ? \"avx512\" : has.avx2 ? \"avx2\" : has.sse4 ? \"sse4\" : has.neon ? \"neon\" : \"scalar\", stdout);
}
")
    try_run(status compiled ${CMAKE_CURRENT_BINARY_DIR}/native ${probe}
            CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${VKRNN_CPU_KERNELS} RUN_OUTPUT_VARIABLE best)
    if(NOT compiled OR NOT status EQUAL 0)
        message(FATAL_ERROR "VKRNN_CPU_TARGETS=native: ${probe} does not compile or run")
    endif()
    set(VKRNN_NATIVE_TARGET ${best} CACHE INTERNAL "The best instruction set of the processor that builds")
endfunction()

# The instruction sets to build kernels for, best first, and Highway's names of them.
set(VKRNN_CHOSEN_TARGETS avx512 avx2 sse4 scalar neon)
set(VKRNN_HIGHWAY_NAMES AVX3 AVX2 SSE4 SCALAR NEON)
set(wanted ${VKRNN_CPU_TARGETS} scalar neon)
if(NOT VKRNN_CPU_TARGETS OR VKRNN_CPU_TARGETS STREQUAL "all")
    set(wanted ${VKRNN_CHOSEN_TARGETS})
elseif(VKRNN_CPU_TARGETS STREQUAL "native")
    if(NOT VKRNN_NATIVE_TARGET)
        vkrnn_find_native_target()
    endif()
    set(wanted ${VKRNN_NATIVE_TARGET})
endif()
set(X86_TARGETS)  # for kernels.cpp.in
foreach(target highway IN ZIP_LISTS VKRNN_CHOSEN_TARGETS VKRNN_HIGHWAY_NAMES)
    set(VKRNN_HIGHWAY_NAME_${target} ${highway})
    if(NOT target IN_LIST wanted)
        list(REMOVE_ITEM VKRNN_CHOSEN_TARGETS ${target})
    elseif(NOT target STREQUAL "neon")
        string(APPEND X86_TARGETS " X(${target}, N_${highway})")
    endif()
endforeach()

# Adds to <result>, for each chosen instruction set, a file <name>_<set>.cpp in the build folder that compiles the
# further arguments for it. A file for another kind of processor is empty.
function(vkrnn_add_targets result name)
    list(TRANSFORM ARGN REPLACE "(.+)" "#include \"\\1\"\n")
    string(CONCAT includes ${ARGN})
    set(made ${${result}})
    foreach(target ${VKRNN_CHOSEN_TARGETS})
        set(processor "defined(__x86_64__) || defined(_M_X64)")
        if(target STREQUAL "neon")
            set(processor "defined(__aarch64__)")
        elseif(target STREQUAL "scalar")
            set(processor "!defined(__aarch64__)")
        endif()
        set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_${target}.cpp)
        file(CONFIGURE OUTPUT ${file} CONTENT
             "#if ${processor}\n#define VKRNN_TARGET HWY_${VKRNN_HIGHWAY_NAME_${target}}\n${includes}#endif\n")
        list(APPEND made ${file})
    endforeach()
    set(${result} ${made} PARENT_SCOPE)
endfunction()

# Compiler options of a target's sources.
function(vkrnn_set_cpu_options target)
    target_include_directories(${target} PRIVATE
        ${VKRNN_CPU_KERNELS} ${PROJECT_SOURCE_DIR}/cpp/src ${PROJECT_SOURCE_DIR}/cpp/include ${PROJECT_SOURCE_DIR}/shaders)
    target_include_directories(${target} SYSTEM PRIVATE ${highway_include})
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
    set(sources ${VKRNN_CPU_KERNELS}/hash.cpp)
    vkrnn_add_targets(sources ${target}/kernels products.cpp tiles.cpp)
    add_library(${target} STATIC ${sources})
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
        configure_file(${VKRNN_CPU_KERNELS}/cell.cpp.in ${build}/${cell}.cpp @ONLY)
        vkrnn_add_targets(sources ${target}/${cell} ${cell}.cpp)
        string(APPEND CELLS " X(${cell})")
    endforeach()
    configure_file(${VKRNN_CPU_KERNELS}/kernels.cpp.in ${build}/kernels.cpp @ONLY)
    add_library(${target} OBJECT ${rows} ${build}/kernels.cpp ${sources})
    vkrnn_set_cpu_options(${target})
    target_include_directories(${target} PRIVATE ${folder})
endfunction()
