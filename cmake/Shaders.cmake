# Compiles GLSL to SPIR-V and embeds it in C++.
#
#   vkrnn_add_kernels(<target> <folder> [FLOAT64 <part>...] [FLOAT32 <part>...] [PLAIN <part>...] [CELLS <other folder>])
#
# makes a static library that defines vkrnn::shader_code() for the kernels found in each part, a folder below <folder>:
#
#   *.comp             one kernel each, named after the file
#   drivers/*.glsl     one kernel per driver and cell of cells/*.glsl, named <cell>_<driver>; with CELLS the cells are
#                      those of the other folder
#
# Kernels of FLOAT64's parts are built again with VKRNN_FLOAT64 defined, named <kernel>_f64. Those of FLOAT64's and
# FLOAT32's parts are built again with VKRNN_16BIT defined, named <kernel>_16bit, unless they access no tensors.
#
# Sources include each other by their path below <folder>, and the cell that a kernel is built for as chosen_cell.glsl.
# Every kernel is compiled for Vulkan 1.3 and validated; a failure stops the build. Touching a file rebuilds the kernels
# that include it. A source package has the compiled kernels in ${VKRNN_BUNDLED}/spirv.

set(VKRNN_SHADER_CODE_TEMPLATE ${CMAKE_CURRENT_LIST_DIR}/shader_code.cpp.in)
set(VKRNN_DIGEST ${CMAKE_CURRENT_LIST_DIR}/Digest.cmake)
set(VKRNN_WITHOUT_TENSORS convert factors matrix_table)

# Compiles <source> into <stem>.spv, unless the source package has it, and sets <result> to its path. Further arguments go
# to the compiler.
function(vkrnn_compile_kernel result kernel source folder stem)
    set(bundled ${VKRNN_BUNDLED}/spirv/${kernel}.spv)
    if(EXISTS ${bundled})
        set(${result} ${bundled} PARENT_SCOPE)
        return()
    endif()
    set(${result} ${stem}.spv PARENT_SCOPE)
    add_custom_command(
        OUTPUT ${stem}.spv
        COMMAND ${GLSLANG} --quiet --target-env vulkan1.3 -S comp -I${folder} ${ARGN}
                --depfile ${stem}.d -o ${stem}.spv ${source}
        COMMAND ${SPIRV_VAL} --target-env vulkan1.3 --scalar-block-layout ${stem}.spv
        DEPENDS ${source}
        DEPFILE ${stem}.d
        COMMENT "Shader ${kernel}"
        VERBATIM)
endfunction()

# Sets <result> to whether the compiler and the Vulkan headers support matrix units.
function(vkrnn_find_matrix_units result headers)
    if(EXISTS ${VKRNN_BUNDLED}/spirv AND NOT VKRNN_TESTS)
        set(${result} ON PARENT_SCOPE)  # .ci/sdist packs no others
        return()
    endif()
    set(probe ${CMAKE_CURRENT_BINARY_DIR}/matrix_units.comp)
    file(CONFIGURE OUTPUT ${probe} @ONLY CONTENT
"#version 460
#extension GL_KHR_cooperative_matrix : require
layout(local_size_x = 32) in;
void main() {}
")
    execute_process(COMMAND ${GLSLANG} --target-env vulkan1.3 -S comp -o ${probe}.spv ${probe}
                    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    file(STRINGS ${headers}/vulkan/vulkan_core.h extension REGEX "define VK_KHR_cooperative_matrix 1")
    set(${result} OFF PARENT_SCOPE)
    if(NOT failed AND extension)
        set(${result} ON PARENT_SCOPE)
    endif()
endfunction()

# A part of vkrnn_add_kernels: adds the kernel of a file for each type of the current part, and for <cell> if given.
macro(vkrnn_add_kernel kernel file cell)
    # file(CONFIGURE) does not touch files whose contents stay the same, so nothing is rebuilt needlessly.
    set(source ${build}/${kernel}.comp)
    file(CONFIGURE OUTPUT ${source} CONTENT
"#version 460
#extension GL_GOOGLE_include_directive : require
#include \"${file}\"
")
    set(types ${other_types})
    if("${kernel}" IN_LIST VKRNN_WITHOUT_TENSORS)
        list(REMOVE_ITEM types _16bit)
    endif()
    foreach(type "" ${types})
        set(name ${kernel}${type})
        set(options -I${cells_folder} -I${build}/cells/${cell})
        if(type STREQUAL "_f64")
            list(APPEND options -DVKRNN_FLOAT64)
        elseif(type STREQUAL "_16bit")
            list(APPEND options -DVKRNN_16BIT)
        endif()
        vkrnn_compile_kernel(module ${name} ${source} ${folder} ${build}/${name} ${options})
        list(APPEND modules ${module})
        string(APPEND SHADER_MODULES "EMBED(${name}, \"${module}\")\n")
        string(APPEND SHADER_ROWS "    ROW(${name}),\n")
    endforeach()
endmacro()

function(vkrnn_add_kernels target folder)
    cmake_parse_arguments(PARSE_ARGV 2 ARG "" "CELLS" "FLOAT32;FLOAT64;PLAIN")
    set(build ${CMAKE_CURRENT_BINARY_DIR}/${target})
    set(cells_folder ${folder})
    if(ARG_CELLS)
        set(cells_folder ${ARG_CELLS})
    endif()
    set(cells)
    file(GLOB files CONFIGURE_DEPENDS ${cells_folder}/cells/*.glsl)
    foreach(file ${files})
        get_filename_component(cell ${file} NAME_WE)
        list(APPEND cells ${cell})
        file(CONFIGURE OUTPUT ${build}/cells/${cell}/chosen_cell.glsl CONTENT
"#ifndef VKRNN_CHOSEN_CELL_GLSL
#define VKRNN_CHOSEN_CELL_GLSL
#include \"cells/${cell}.glsl\"
#endif
")
    endforeach()

    set(modules)
    set(SHADER_MODULES)
    set(SHADER_ROWS)
    foreach(part ${ARG_FLOAT64} ${ARG_FLOAT32} ${ARG_PLAIN})
        set(other_types _16bit)
        if(part IN_LIST ARG_FLOAT64)
            list(APPEND other_types _f64)
        elseif(part IN_LIST ARG_PLAIN)
            set(other_types)
        endif()
        file(GLOB kernels CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/${part}/*.comp)
        foreach(file ${kernels})
            get_filename_component(kernel ${file} NAME_WE)
            vkrnn_add_kernel(${kernel} ${file} "")
        endforeach()
        file(GLOB drivers CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/${part}/drivers/*.glsl)
        foreach(file ${drivers})
            get_filename_component(driver ${file} NAME_WE)
            foreach(cell ${cells})
                vkrnn_add_kernel(${cell}_${driver} ${file} ${cell})
            endforeach()
        endforeach()
    endforeach()
    set(SHADER_DIGEST ${target}/digest.h)
    configure_file(${VKRNN_SHADER_CODE_TEMPLATE} ${build}/shader_code.cpp @ONLY)
    file(CONFIGURE OUTPUT ${build}/modules.txt CONTENT "${modules}")
    add_custom_command(
        OUTPUT ${build}/digest.h
        COMMAND ${CMAKE_COMMAND} -D LIST=${build}/modules.txt -D HEADER=${build}/digest.h -P ${VKRNN_DIGEST}
        DEPENDS ${modules} ${build}/modules.txt ${VKRNN_DIGEST}
        VERBATIM)
    add_library(${target} STATIC ${build}/shader_code.cpp ${build}/digest.h)
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR} ${PROJECT_SOURCE_DIR}/cpp/include)
    target_link_libraries(${target} PRIVATE vkrnn_options)
endfunction()
