# vkrnn_add_cuda_sources(<target> <folder>): adds a source to <target> that contains the text of all files below <folder>
# and defines vkrnn::cuda::sources(). Their names are paths below <folder>, as they include each other.

set(VKRNN_CUDA_SOURCES_TEMPLATE ${CMAKE_CURRENT_LIST_DIR}/cuda_sources.cpp.in)

function(vkrnn_add_cuda_sources target folder)
    file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${folder}
         ${folder}/*.comp ${folder}/*.glsl ${folder}/*.h ${folder}/*.cuh)
    set(SOURCE_ROWS)
    foreach(file ${files})
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/${file})
        file(READ ${folder}/${file} text)
        string(APPEND SOURCE_ROWS "        {\"${file}\", R\"source(${text})source\"},\n")
    endforeach()
    list(LENGTH files SOURCE_COUNT)
    set(made ${CMAKE_CURRENT_BINARY_DIR}/cuda_sources.cpp)
    configure_file(${VKRNN_CUDA_SOURCES_TEMPLATE} ${made} @ONLY)
    target_sources(${target} PRIVATE ${made})
    set_source_files_properties(${made} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
