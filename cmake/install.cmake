# The command, both libraries, headers, and what pkg-config and find_package need. An installed tree may be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
install(TARGETS nmlp_command neuronmlp neuronmlp_static)
install(DIRECTORY include/neuronmlp ${CMAKE_BINARY_DIR}/generated/include/neuronmlp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# Libraries that whoever links the archive needs; LIBS of pkg-config and of the CMake package.
set(NMLP_PRIVATE_LIBS -lcjson -lpcre2-8 -lutf8proc)
if(NMLP_CUDA_FOUND)
  list(APPEND NMLP_PRIVATE_LIBS -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lstdc++ -lrt)
endif()
list(APPEND NMLP_PRIVATE_LIBS -lpthread -ldl -lm)

file(RELATIVE_PATH NMLP_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" NMLP_PC_PREFIX "${NMLP_PC_PREFIX}")
list(JOIN NMLP_PRIVATE_LIBS " " NMLP_PC_LIBS)
configure_file(cmake/neuronmlp.pc.in ${CMAKE_BINARY_DIR}/neuronmlp.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/neuronmlp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(NMLP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/neuronmlp)
set(NMLP_PACKAGE_LIBS "${NMLP_PRIVATE_LIBS}")
configure_package_config_file(cmake/neuronmlpConfig.cmake.in ${CMAKE_BINARY_DIR}/neuronmlpConfig.cmake
  INSTALL_DESTINATION ${NMLP_PACKAGE_DIR} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/neuronmlpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/neuronmlpConfig.cmake ${CMAKE_BINARY_DIR}/neuronmlpConfigVersion.cmake
  DESTINATION ${NMLP_PACKAGE_DIR})

# Man pages, written by the program itself from the tables behind --help. A distribution's zsh looks into another folder.
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/man/neuronmlp.1
  COMMAND sh ${CMAKE_SOURCE_DIR}/scripts/manual $<TARGET_FILE:nmlp_command> ${CMAKE_BINARY_DIR}/man
  DEPENDS nmlp_command ${CMAKE_SOURCE_DIR}/scripts/manual COMMENT "Writing man pages")
add_custom_target(nmlp_manual ALL DEPENDS ${CMAKE_BINARY_DIR}/man/neuronmlp.1)
install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
set(NMLP_ZSH_DIR ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "where completion for zsh goes")
install(FILES completions/neuronmlp.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  RENAME neuronmlp)
install(FILES completions/_neuronmlp DESTINATION ${NMLP_ZSH_DIR})
install(FILES completions/neuronmlp.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
