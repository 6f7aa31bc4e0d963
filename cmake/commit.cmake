# Writes the commit of SOURCE_DIR to OUTPUT, empty where it is not the top of a git checkout.
set(commit "")
if(EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define NMLP_BUILD_COMMIT \"${commit}\"\n" @ONLY)
