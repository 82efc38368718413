# cmake -D SPIRV=<file> -D HEADER=<file> -D NAME=<name> -P Embed.cmake: writes a SPIR-V module as a C++ array of words.

file(READ ${SPIRV} bytes HEX)
string(REGEX REPLACE "(..)(..)(..)(..)" "0x\\4\\3\\2\\1," words "${bytes}")
file(WRITE ${HEADER} "const std::uint32_t ${NAME}[] = {${words}};\n")
