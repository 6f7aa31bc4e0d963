# Turns src/neuron/machines/*.machine into a table of C strings, so that the program carries its machines with it.
file(GLOB NMLP_MACHINE_FILES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/neuron/machines/*.machine)
list(SORT NMLP_MACHINE_FILES)
set(NMLP_MACHINE_TABLE "#include \"neuron/machine_builtin.h\"\n\nconst nmlp_machine_builtin nmlp_machine_builtins[] = {\n")
list(LENGTH NMLP_MACHINE_FILES NMLP_N_MACHINES)
foreach(machine_file ${NMLP_MACHINE_FILES})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${machine_file})
  get_filename_component(machine_name ${machine_file} NAME_WE)
  # Read byte-wise as hex: CMake lists would eat brackets and semicolons.
  file(READ ${machine_file} machine_hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" machine_text "${machine_hex}")
  # A string a source line keeps the generated literal below compiler limits.
  string(REPLACE "\\x0a" "\\n\"\n     \"" machine_text "${machine_text}")
  string(APPEND NMLP_MACHINE_TABLE "    {\"${machine_name}\",\n     \"${machine_text}\"},\n")
endforeach()
string(APPEND NMLP_MACHINE_TABLE "};\n\nconst size_t nmlp_machine_n_builtins = ${NMLP_N_MACHINES};\n")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/machine_table.c CONTENT "${NMLP_MACHINE_TABLE}" @ONLY)
list(APPEND NMLP_LIBRARY_SOURCES ${CMAKE_BINARY_DIR}/generated/machine_table.c)
