# cmake -D LIST=<file> -D HEADER=<file> -P Digest.cmake: writes a header that differs if one of the listed files does. What
# embeds them includes it, because compilers and their caches do not see what an assembler reads.

file(READ ${LIST} files)
set(digests)
foreach(file ${files})
    file(SHA256 ${file} digest)
    string(APPEND digests "${digest}")
endforeach()
string(SHA256 digest "${digests}")
file(WRITE ${HEADER} "// ${digest}\n")
