# What the compiler and the linker can do against exploits, for every program and library of the build.
include(CheckCCompilerFlag)
include(CheckPIESupported)
check_pie_supported()
add_library(nmlp_hardening INTERFACE)

# The same bytes wherever the sources lie.
target_compile_options(nmlp_hardening INTERFACE $<$<COMPILE_LANGUAGE:C>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.
  -ffile-prefix-map=${CMAKE_BINARY_DIR}=build>)

foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection=full)
  string(MAKE_C_IDENTIFIER "NMLP_HAS${flag}" found)
  check_c_compiler_flag(${flag} ${found})
  if(${found})
    target_compile_options(nmlp_hardening INTERFACE $<$<COMPILE_LANGUAGE:C>:${flag}>)
  endif()
endforeach()
# Sanitizers check more, and bring functions of their own for what this replaces.
if(NOT NMLP_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_options(nmlp_hardening INTERFACE $<$<COMPILE_LANGUAGE:C>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3>)
endif()
target_link_options(nmlp_hardening INTERFACE LINKER:-z,relro,-z,now,-z,noexecstack)
target_link_libraries(nmlp_warnings INTERFACE nmlp_hardening)
