# GLSL to SPIR-V to C++.
#
#   vkrnn_add_kernels(<target> <folder> [FLOAT64])
#
# makes a static library that defines vkrnn::shader_code() for the kernels found under <folder>:
#
#   *.comp, kernels/*.comp     one kernel each, named after the file
#   drivers/*.glsl             one kernel per driver and cell of cells/*.glsl, named <cell>_<driver>
#
# With FLOAT64 each is built a second time with VKRNN_FLOAT64 defined, named <kernel>_f64.
#
# Sources may include each other by their path below <folder> or below <folder>/include. Every kernel is compiled for
# Vulkan 1.3 and validated; a failure stops the build. Touching a file rebuilds the kernels that include it.

find_program(GLSLANG NAMES glslangValidator glslang)
if(NOT GLSLANG)
    message(FATAL_ERROR "glslangValidator not found: apt install glslang-tools")
endif()
find_program(SPIRV_VAL NAMES spirv-val)
if(NOT SPIRV_VAL)
    message(FATAL_ERROR "spirv-val not found: apt install spirv-tools")
endif()
set(VKRNN_SHADER_CODE_TEMPLATE ${CMAKE_CURRENT_LIST_DIR}/shader_code.cpp.in)
set(VKRNN_EMBED ${CMAKE_CURRENT_LIST_DIR}/Embed.cmake)

# Compiles <source> into <stem>.spv and, as a C++ array named `<kernel>`, into <stem>.h; more arguments go to the compiler.
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

function(vkrnn_add_kernels target folder)
    set(build ${CMAKE_CURRENT_BINARY_DIR}/${target})
    file(MAKE_DIRECTORY ${build})
    file(GLOB kernels CONFIGURE_DEPENDS ${folder}/*.comp ${folder}/kernels/*.comp)
    file(GLOB drivers CONFIGURE_DEPENDS ${folder}/drivers/*.glsl)
    file(GLOB cells CONFIGURE_DEPENDS ${folder}/cells/*.glsl)

    foreach(cell ${cells})
        get_filename_component(cell ${cell} NAME_WE)
        foreach(driver ${drivers})
            get_filename_component(driver ${driver} NAME_WE)
            # file(CONFIGURE) leaves a file alone whose contents would be the same, so nothing is rebuilt in vain.
            file(CONFIGURE OUTPUT ${build}/${cell}_${driver}.comp @ONLY CONTENT
"#version 460
#extension GL_GOOGLE_include_directive : require
#include \"cells/@cell@.glsl\"
#include \"drivers/@driver@.glsl\"
")
            list(APPEND kernels ${build}/${cell}_${driver}.comp)
        endforeach()
    endforeach()

    set(headers)
    set(SHADER_INCLUDES)
    set(SHADER_ROWS)
    set(SHADER_COUNT 0)
    foreach(source ${kernels})
        get_filename_component(stem ${source} NAME_WE)
        foreach(type "" ${ARGN})
            set(kernel ${stem})
            set(define)
            if(type STREQUAL "FLOAT64")
                set(kernel ${stem}_f64)
                set(define -DVKRNN_FLOAT64)
            endif()
            vkrnn_compile_kernel(${kernel} ${source} ${folder} ${build}/${kernel} ${define})
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
