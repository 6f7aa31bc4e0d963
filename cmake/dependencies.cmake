# Third-party libraries, each used by one folder (scripts/layers.txt).
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas) # loaded when used (src/linalg/openblas.h)
pkg_check_modules(LIBEVENT REQUIRED IMPORTED_TARGET libevent_core libevent_extra)

add_library(nmlp_dependencies INTERFACE)
target_link_libraries(nmlp_dependencies INTERFACE
  PkgConfig::CJSON PkgConfig::PCRE2 PkgConfig::UTF8PROC Threads::Threads ${CMAKE_DL_LIBS} m)
target_include_directories(nmlp_dependencies INTERFACE ${OPENBLAS_INCLUDE_DIRS})

# Without MPI everything works on one process.
option(NMLP_MPI "build for several processes where MPI is installed" ON)
if(NMLP_MPI)
  find_package(MPI COMPONENTS C)
endif()
