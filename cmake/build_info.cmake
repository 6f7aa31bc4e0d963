# What `neuronmlp --version` says about the build, as two generated headers. The commit is looked up at every build, since it changes without
# CMake running again; the file is only touched when it does.
set(NMLP_BUILD_LIBRARIES)
foreach(library CJSON PCRE2 UTF8PROC OPENBLAS)
  string(TOLOWER ${library} name)
  string(APPEND NMLP_BUILD_LIBRARIES "{\"${name}\", \"${${library}_VERSION}\"}, ")
endforeach()
set(NMLP_BUILD_CUDA false)
set(NMLP_BUILD_CUDA_NOTE "nvcc was not found when this was built")
if(NMLP_CUDA_FOUND)
  set(NMLP_BUILD_CUDA true)
  set(NMLP_BUILD_CUDA_NOTE "CUDA ${CUDAToolkit_VERSION}")
elseif(NMLP_CUDA STREQUAL "OFF" OR NMLP_SANITIZE OR NMLP_FUZZ)
  set(NMLP_BUILD_CUDA_NOTE "left out when this was built")
endif()
configure_file(cmake/nmlp_build.h.in ${CMAKE_BINARY_DIR}/generated/nmlp_build.h @ONLY)

add_custom_target(nmlp_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${CMAKE_BINARY_DIR}/generated/nmlp_commit.h
          -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake
  BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/nmlp_commit.h
  COMMENT "Looking up the commit")
set_source_files_properties(src/base/build_info.c PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
