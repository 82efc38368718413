# Compiles GLSL to SPIR-V and embeds it in C++.
#
#   vkrnn_add_kernels(<target> <folder> [FLOAT64] [CELLS <other folder>] [PARTS <part>...])
#
# makes a static library that defines vkrnn::shader_code() for the kernels found under <folder>:
#
#   *.comp, kernels/*.comp     one kernel each, named after the file
#   drivers/*.glsl             one kernel per driver and cell of cells/*.glsl, named <cell>_<driver>; with CELLS the
#                              cells are those of the other folder
#
# and the same for <folder>/<part> of each part.
#
# With FLOAT64, each kernel except those of parts is also built with VKRNN_FLOAT64 defined, as <kernel>_f64.
#
# Sources may include each other by their path below <folder> or below <folder>/include. Every kernel is compiled for
# Vulkan 1.3 and validated; a failure stops the build. Touching a file rebuilds the kernels that include it.

set(VKRNN_SHADER_CODE_TEMPLATE ${CMAKE_CURRENT_LIST_DIR}/shader_code.cpp.in)
set(VKRNN_EMBED ${CMAKE_CURRENT_LIST_DIR}/Embed.cmake)

# Compiles <source> into <stem>.spv and, as a C++ array `<kernel>`, into <stem>.h. Further arguments go to the compiler.
function(vkrnn_compile_kernel kernel source folder stem)
    add_custom_command(
        OUTPUT ${stem}.spv ${stem}.h
        COMMAND ${GLSLANG} --quiet --target-env vulkan1.3 -S comp -I${folder} -I${folder}/include ${ARGN}
                --depfile ${stem}.d -o ${stem}.spv ${source}
        COMMAND ${SPIRV_VAL} --target-env vulkan1.3 --scalar-block-layout ${stem}.spv
        COMMAND ${CMAKE_COMMAND} -D SPIRV=${stem}.spv -D HEADER=${stem}.h -D NAME=${kernel} -P ${VKRNN_EMBED}
        DEPENDS ${source} ${VKRNN_EMBED}
        DEPFILE ${stem}.d
        COMMENT "Shader ${kernel}"
        VERBATIM)
endfunction()

# Sets <result> to whether the compiler and the Vulkan headers support matrix units.
function(vkrnn_find_matrix_units result headers)
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

function(vkrnn_add_kernels target folder)
    cmake_parse_arguments(PARSE_ARGV 2 ARG "FLOAT64" "CELLS" "PARTS")
    set(types "")
    if(ARG_FLOAT64)
        set(types FLOAT64)
    endif()
    set(build ${CMAKE_CURRENT_BINARY_DIR}/${target})
    file(MAKE_DIRECTORY ${build})
    set(cells_folder ${folder})
    if(ARG_CELLS)
        set(cells_folder ${ARG_CELLS})
    endif()
    file(GLOB cells CONFIGURE_DEPENDS ${cells_folder}/cells/*.glsl)
    file(GLOB kernels CONFIGURE_DEPENDS ${folder}/*.comp ${folder}/kernels/*.comp)
    file(GLOB drivers CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/drivers/*.glsl)
    set(only_float32)
    foreach(part ${ARG_PARTS})
        file(GLOB part_kernels CONFIGURE_DEPENDS ${folder}/${part}/*.comp)
        file(GLOB part_drivers CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/${part}/drivers/*.glsl)
        list(APPEND only_float32 ${part_kernels} ${part_drivers})
        list(APPEND kernels ${part_kernels})
        list(APPEND drivers ${part_drivers})
    endforeach()

    foreach(file ${cells})
        get_filename_component(cell ${file} NAME_WE)
        foreach(driver_file ${drivers})
            get_filename_component(driver ${driver_file} NAME_WE)
            # file(CONFIGURE) does not touch files whose contents stay the same, so nothing is rebuilt needlessly.
            set(source ${build}/${cell}_${driver}.comp)
            file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"#version 460
#extension GL_GOOGLE_include_directive : require
#include \"cells/@cell@.glsl\"
#include \"@driver_file@\"
")
            list(APPEND kernels ${source})
            if(driver_file IN_LIST only_float32)
                list(APPEND only_float32 ${source})
            endif()
        endforeach()
    endforeach()

    set(headers)
    set(SHADER_INCLUDES)
    set(SHADER_ROWS)
    set(SHADER_COUNT 0)
    foreach(source ${kernels})
        get_filename_component(stem ${source} NAME_WE)
        foreach(type "" ${types})
            if(type STREQUAL "FLOAT64" AND source IN_LIST only_float32)
                continue()
            endif()
            set(kernel ${stem})
            set(define)
            if(type STREQUAL "FLOAT64")
                set(kernel ${stem}_f64)
                set(define -DVKRNN_FLOAT64)
            endif()
            vkrnn_compile_kernel(${kernel} ${source} ${folder} ${build}/${kernel} ${define} -I${cells_folder})
            list(APPEND headers ${build}/${kernel}.h)
            string(APPEND SHADER_INCLUDES "#include \"${target}/${kernel}.h\"\n")
            string(APPEND SHADER_ROWS "        {\"${kernel}\", code::${kernel}},\n")
            math(EXPR SHADER_COUNT "${SHADER_COUNT} + 1")
        endforeach()
    endforeach()
    configure_file(${VKRNN_SHADER_CODE_TEMPLATE} ${build}/shader_code.cpp @ONLY)
    add_library(${target} STATIC ${build}/shader_code.cpp ${headers})
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR} ${PROJECT_SOURCE_DIR}/cpp/include)
    target_link_libraries(${target} PRIVATE vkrnn_options)
endfunction()
